// Weight formats that libraries bring: each has a number of this process, under which its name and functions are found.
#pragma once

#include <infeng/abi.h>

#include <string>
#include <string_view>
#include <vector>

namespace infeng {

// Registers a format and tells it its number. One of the same name and geometry is the same format. Throws Error
// "bad_format" beginning with `path`.
void add_format(const std::string& path, infeng_format& format);

// NULL for a number or a name that nobody brought. What is found lives as long as the process.
const infeng_format* foreign_format(uint32_t number);
const infeng_format* foreign_format(std::string_view name);

std::vector<std::string> foreign_names();

}  // namespace infeng
