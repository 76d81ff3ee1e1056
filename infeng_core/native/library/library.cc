#include "library/library.h"

#include <infeng/extension/error.h>

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "machine/cpu.h"
#include "machine/device.h"
#include "machine/fpstate.h"
#include "vocabulary/foreign_ops.h"
#include "vocabulary/names.h"
#include "weights/formats.h"

namespace infeng {
namespace {

constexpr int kMaxLinks = 64;
constexpr uint32_t kDevice = INFENG_EXTENSION_DEVICE;
constexpr int32_t kMaxKernels = 4096;
constexpr int32_t kMaxOps = 256;
constexpr size_t kMaxName = 128;

#ifndef INFENG_CORE_VERSION
#define INFENG_CORE_VERSION "unknown"
#endif

// A guard behind the description detects a library that ignores struct_size.
struct GuardedDesc {
  infeng_library_desc desc;
  unsigned char guard[256];
};
constexpr unsigned char kGuardByte = 0xA5;

// Returns the type of a required extension that this core does not know, or that is not `known`; 0 if there is none.
uint32_t check_chain(const std::string& path, const char* owner, const infeng_extension* link, uint32_t known = 0) {
  uint32_t required = 0;
  for (int links = 0; link != nullptr; link = link->next) {
    if (++links > kMaxLinks) {
      fail("bad_extension", path, ": the extension chain of ", owner, " has more than ", kMaxLinks,
           " links or runs in a circle");
    }
    if (link->size < sizeof(infeng_extension) || link->size > kMostStruct) {
      fail("bad_extension", path, ": an extension of ", owner, " says it has ", link->size, " bytes");
    }
    if (link->type & INFENG_EXTENSION_REQUIRED && link->type != known) required = link->type;
  }
  return required;
}

std::string checked_name(const std::string& path, const char* what, const char* text) {
  if (text == nullptr || *text == '\0') fail("bad_struct", path, ": ", what, " has no name");
  const size_t length = strnlen(text, kMaxName + 1);
  const bool plain = std::all_of(text, text + length, [](char c) { return c > ' ' && c < 127; });
  if (length > kMaxName || !plain) fail("bad_struct", path, ": the name of ", what, " is not a short plain word");
  return {text, length};
}

std::vector<std::string> split(const char* list) {
  std::vector<std::string> words;
  std::string word;
  for (const char* c = list == nullptr ? "" : list;; ++c) {
    if (*c == ',' || *c == ' ' || *c == '\0') {
      if (!word.empty()) words.push_back(word);
      word.clear();
      if (*c == '\0') return words;
    } else {
      word += *c;
    }
  }
}

// Returns why a kernel of a later ABI cannot be used here: "op 17"; "" for one that can.
std::string later_part(const infeng_kernel& abi, uint32_t required_extension) {
  const auto part = [](const char* what, uint32_t number) { return what + std::to_string(number); };
  if (required_extension != 0) return part("extension ", required_extension & ~INFENG_EXTENSION_REQUIRED);
  if (!is_known(Vocabulary::op, abi.op)) return part("op ", abi.op);
  if (!is_known(Vocabulary::numerics, abi.numerics)) return part("numerics class ", abi.numerics);
  if (!is_known(Vocabulary::kind, abi.kind)) return part("kind ", abi.kind);
  return "";
}

// Clears the needs that this core does not know, which no problem has, and returns their numbers.
std::string take_later_needs(infeng_kernel& abi) {
  std::string later;
  for (uint32_t need = 0; need < 64; ++need) {
    const bool is_function = need >= INFENG_NEED_FUNCTION(0);
    const bool known =
        is_function ? is_known(Vocabulary::function, need - INFENG_NEED_FUNCTION(0)) : is_known(Vocabulary::need, need);
    if (known || (abi.handles & INFENG_NEED_BIT(need)) == 0) continue;
    abi.handles &= ~INFENG_NEED_BIT(need);
    later += (later.empty() ? "" : " and ") + std::to_string(need);
  }
  return later;
}

// What became of the ops that a library lists, in its order.
struct ListedOp {
  uint32_t number;   // 0 for an op that cannot be used
  std::string name;  // "op clip", "op 0"
};

// Gives a kernel of one of the library's own ops the number of this process. Returns false if the op is not listed or
// cannot be used, which the library then says.
bool take_own_op(Library& library, Kernel& kernel, const std::vector<ListedOp>& ops) {
  if (kernel.abi.op < INFENG_OP_FOREIGN) return true;
  const size_t place = kernel.abi.op - INFENG_OP_FOREIGN;
  if (place >= ops.size()) {
    library.unknown.push_back("op " + std::to_string(kernel.abi.op) + " of kernel " + kernel.name);
    return false;
  }
  kernel.abi.op = ops[place].number;
  if (kernel.abi.op != 0) return true;
  library.faults.push_back("kernel " + kernel.name + ": its " + ops[place].name + " cannot be used");
  return false;
}

// Copies the fields that both sides know: the struct of an older minor is shorter, that of a newer minor longer.
// Returns NULL for a kernel of a later ABI that this core cannot use, which `library.unknown` then names, and for one
// of an op that cannot be used.
std::shared_ptr<Kernel> read_kernel(Library& library, const infeng_kernel* source, int32_t index,
                                    const std::vector<ListedOp>& ops) {
  const std::string& path = library.path;
  const std::string where = "kernel " + std::to_string(index);
  if (source == nullptr) fail("bad_struct", path, ": ", where, " is NULL");
  const uint32_t size = source->struct_size;
  if (size < offsetof(infeng_kernel, features) || size > kMostStruct) {
    fail("bad_struct", path, ": ", where, " says that it has ", size, " bytes, this ABI knows ", sizeof(infeng_kernel));
  }
  auto kernel = std::make_shared<Kernel>();
  kernel->library = &library;
  std::memcpy(&kernel->abi, source, std::min<size_t>(size, sizeof(infeng_kernel)));
  const infeng_kernel& abi = kernel->abi;
  kernel->name = checked_name(path, where.c_str(), abi.name);
  kernel->features = split(abi.features);
  const uint32_t required = check_chain(path, kernel->name.c_str(), abi.next);
  if (abi.op == 0) fail("bad_struct", path, ": kernel ", kernel->name, " names no op");
  if (abi.numerics == 0) fail("bad_struct", path, ": kernel ", kernel->name, " names no numerics class");
  if (abi.kind == 0) fail("bad_struct", path, ": kernel ", kernel->name, " names no kind");
  if (!take_own_op(library, *kernel, ops)) return nullptr;
  if (const std::string later = later_part(abi, required); !later.empty()) {
    library.unknown.push_back(later + " of kernel " + kernel->name);
    return nullptr;
  }
  const char* missing = abi.accepts == nullptr ? "accepts"
                        : abi.tiles == nullptr ? "tiles"
                        : abi.run == nullptr   ? "run"
                                               : nullptr;
  if (missing != nullptr) fail("null_function", path, ": kernel ", kernel->name, " has no function `", missing, "`");
  if ((abi.create == nullptr) != (abi.destroy == nullptr)) {
    fail("null_function", path, ": kernel ", kernel->name,
         " has one of the functions `create` and `destroy`, not both");
  }
  if (abi.prepare != nullptr && abi.create == nullptr) {
    fail("null_function", path, ": kernel ", kernel->name, " has the function `prepare`, but not `create`");
  }
  if (abi.numerics == INFENG_NUMERICS_APPROX) {
    if (!(abi.bound >= 0 && abi.bound <= INFENG_MOST_BOUND)) {
      fail("bad_struct", path, ": kernel ", kernel->name, " has the bound ", abi.bound, ", possible are 0 to ",
           INFENG_MOST_BOUND);
    }
    kernel->bound = abi.bound == 0 ? INFENG_MOST_BOUND : abi.bound;
  }
  if (const std::string needs = take_later_needs(kernel->abi); !needs.empty()) {
    library.unknown.push_back("need " + needs + " of kernel " + kernel->name);
  }
  return kernel;
}

infeng_status call_entry(const std::string& path, infeng_library_fn entry, const infeng_host& host,
                         infeng_library_desc* desc) {
  try {
    return entry(&host, desc);
  } catch (const std::exception& error) {
    fail("entry_threw", path, ": infeng_library threw a C++ exception: ", error.what());
  } catch (...) {
    fail("entry_threw", path, ": infeng_library threw a C++ exception");
  }
}

void check_versions(const std::string& path, infeng_status status, const infeng_library_desc& desc) {
  const auto text = [&] {
    return path + ": speaks kernel ABI " + std::to_string(desc.abi_major) + "." + std::to_string(desc.abi_minor) +
           ", this core speaks " + std::to_string(INFENG_ABI_MAJOR) + "." + std::to_string(INFENG_ABI_MINOR);
  };
  if (desc.abi_major != INFENG_ABI_MAJOR) {
    fail("abi_major", text(), ": the majors must be equal; install a build for this core");
  }
  if (desc.abi_minor < INFENG_ABI_SINCE) {
    const auto version = [](int minor) { return std::to_string(INFENG_ABI_MAJOR) + "." + std::to_string(minor); };
    fail("abi_minor", path, ": built for ABI ", version(desc.abi_minor), ", this engine speaks ",
         version(INFENG_ABI_MINOR), ": rebuild it with infeng-abi ", version(INFENG_ABI_MINOR));
  }
  if (desc.abi_minor > INFENG_ABI_MINOR) {
    fail("abi_minor", text(), " and it did not negotiate down; update infeng-core or install an older build");
  }
  if (status == INFENG_UNSUPPORTED_ABI) fail("abi_minor", text(), " and the library refused it");
  if (status != INFENG_OK) {
    fail("entry_failed", path, ": infeng_library returned status ", status, " (", status_code(status), ")");
  }
}

// A library of an older minor has no revision, and 0 is that of one that was written by hand before there was another.
void check_numerics(const std::string& path, const infeng_library_desc& desc) {
  const bool has_field = desc.struct_size >= offsetof(infeng_library_desc, op_count) && desc.numerics != 0;
  const uint32_t revision = has_field ? desc.numerics : 1;
  if (revision == INFENG_NUMERICS) return;
  fail("numerics", path, ": computes by revision ", revision, " of the numerics, this core by ", INFENG_NUMERICS,
       ": their bytes differ; install builds of one revision");
}

void read_formats(Library& library, const infeng_library_desc& desc) {
  const bool listed = desc.format_count == 0 || desc.formats != nullptr;
  if (desc.format_count < 0 || desc.format_count > kMaxKernels || !listed) {
    fail("bad_struct", library.path, ": lists ", desc.format_count, " weight formats");
  }
  for (int32_t i = 0; i < desc.format_count; ++i) {
    if (desc.formats[i] == nullptr) fail("bad_struct", library.path, ": weight format ", i, " is NULL");
    add_format(library.path, *desc.formats[i]);
    library.formats.emplace_back(desc.formats[i]->name);
  }
}

// An op that cannot be used costs itself and its kernels; `library.faults` says why.
std::vector<ListedOp> read_ops(Library& library, const infeng_library_desc& desc) {
  if (desc.op_count < 0 || desc.op_count > kMaxOps || (desc.op_count > 0 && desc.ops == nullptr)) {
    library.faults.push_back("its list of ops: it has " + std::to_string(desc.op_count) + " entries");
    return {};
  }
  std::vector<ListedOp> found;
  for (int32_t i = 0; i < desc.op_count; ++i) {
    Registered op = add_op(desc.ops[i]);
    const bool is_twice = std::ranges::count(library.ops, op.name) > 0;
    if (op.fault.empty() && is_twice) op.fault = "it is listed twice";
    const std::string name = "op " + (op.name.empty() ? std::to_string(i) : op.name);
    if (op.fault.empty()) library.ops.push_back(op.name);
    if (!op.fault.empty()) library.faults.push_back(name + ": " + op.fault);
    found.push_back({op.fault.empty() ? desc.ops[i]->number : 0, name});
  }
  return found;
}

void read_device(Library& library, const infeng_library_desc& desc) {
  for (const infeng_extension* link = desc.next; link != nullptr; link = link->next) {
    if (link->type != kDevice) continue;
    const auto& abi = *reinterpret_cast<const infeng_device*>(link);
    const bool is_whole = link->size >= sizeof abi && abi.describe != nullptr && abi.allocate != nullptr &&
                          abi.release != nullptr && abi.copy != nullptr && abi.wait != nullptr && abi.memory != nullptr;
    if (!is_whole) fail("null_function", library.path, ": its device lacks a function");
    library.device = std::make_shared<Device>(library.name, abi);
    return;
  }
}

std::shared_ptr<Library> read_library(const std::string& path, infeng_library_fn entry, const infeng_host& host) {
  GuardedDesc guarded{};
  std::memset(guarded.guard, kGuardByte, sizeof guarded.guard);
  infeng_library_desc& desc = guarded.desc;
  desc.struct_size = sizeof desc;
  const infeng_status status = call_entry(path, entry, host, &desc);
  const bool intact = std::all_of(std::begin(guarded.guard), std::end(guarded.guard),
                                  [](unsigned char byte) { return byte == kGuardByte; });
  if (!intact) fail("bad_struct", path, ": wrote past the ", sizeof desc, " bytes of its description");
  check_versions(path, status, desc);
  if (desc.struct_size < offsetof(infeng_library_desc, format_count) || desc.struct_size > sizeof desc) {
    fail("bad_struct", path, ": says that its description has ", desc.struct_size, " bytes, the host offered ",
         sizeof desc);
  }
  check_numerics(path, desc);
  if (const uint32_t type = check_chain(path, "the library", desc.next, kDevice)) {
    fail("bad_extension", path, ": the library requires extension ", type & ~INFENG_EXTENSION_REQUIRED,
         ", which this core does not know; update infeng-core");
  }
  auto library = std::make_shared<Library>();
  library->path = path;
  library->name = checked_name(path, "the library", desc.name);
  library->version = desc.version == nullptr ? "" : std::string(desc.version, strnlen(desc.version, kMaxName));
  library->abi_major = desc.abi_major;
  library->abi_minor = desc.abi_minor;
  // A library of an older minor sets struct_size to its shorter description.
  if (desc.struct_size >= offsetof(infeng_library_desc, thread_enter)) read_formats(*library, desc);
  if (desc.struct_size >= offsetof(infeng_library_desc, numerics)) {
    library->thread_enter = desc.thread_enter;
    library->thread_exit = desc.thread_exit;
  }
  std::vector<ListedOp> ops;
  if (desc.struct_size >= sizeof desc) ops = read_ops(*library, desc);
  if (desc.kernel_count < 0 || desc.kernel_count > kMaxKernels || (desc.kernel_count > 0 && desc.kernels == nullptr)) {
    fail("bad_struct", path, ": lists ", desc.kernel_count, " kernels");
  }
  read_device(*library, desc);
  std::set<std::string> names;
  for (int32_t i = 0; i < desc.kernel_count; ++i) {
    auto kernel = read_kernel(*library, desc.kernels[i], i, ops);
    if (kernel == nullptr) continue;
    if (library->device != nullptr && kernel->abi.kind != INFENG_KIND_WHOLE) {
      fail("bad_struct", path, ": kernel ", kernel->name, " is not WHOLE, as kernels of a device are");
    }
    if (!names.insert(kernel->name).second) fail("bad_struct", path, ": has two kernels named ", kernel->name);
    library->kernels.push_back(std::move(kernel));
  }
  return library;
}

struct Opened {
  infeng_host host{};
  std::shared_ptr<const Library> library;
};

// The libraries that this thread entered; thread_exit must run on the same thread.
struct Entered {
  std::vector<const Library*> libraries;
  ~Entered() {
    for (const Library* library : libraries) {
      if (library->thread_exit != nullptr) library->thread_exit();
    }
  }
};
thread_local Entered entered;

}  // namespace

std::string Kernel::full_name() const { return library->name + "/" + name; }

bool Kernel::accepts(const infeng_problem& problem) const {
  return problem.op == abi.op && (problem.needs & ~abi.handles) == 0 && abi.accepts(&problem) != 0;
}

infeng_workspace Kernel::workspace(const infeng_problem& problem) const {
  constexpr int64_t kMost = int64_t{1} << 40;
  infeng_workspace out{sizeof(infeng_workspace), 0, 0, 0};
  if (abi.workspace != nullptr) {
    const infeng_status status = abi.workspace(&problem, &out);
    if (status != INFENG_OK) fail(status_code(status), full_name(), ": workspace returned status ", status);
  }
  if (out.align == 0) out.align = 64;
  const bool power = (out.align & (out.align - 1)) == 0;
  if (!power || out.align > 1u << 21 || out.shared < 0 || out.shared > kMost || out.per_worker < 0 ||
      out.per_worker > kMost) {
    fail("bad_workspace", full_name(), ": asks for ", out.shared, " shared and ", out.per_worker,
         " bytes per worker, aligned to ", out.align);
  }
  if (out.align < 64) out.align = 64;
  return out;
}

std::shared_ptr<void> Kernel::instance(const infeng_problem& problem, const infeng_weight* weight) const {
  if (abi.create == nullptr) return nullptr;
  const infeng_bound_weight bound_weight{{sizeof bound_weight, INFENG_EXTENSION_WEIGHT, problem.next}, weight};
  infeng_problem extended = problem;
  if (weight != nullptr) extended.next = &bound_weight.head;
  char message[200] = {};
  infeng_worker worker{sizeof worker, 0, 1, sizeof message, nullptr, nullptr, message, nullptr};
  void* made = nullptr;
  const FpGuard saved;
  fp_write(kFpContract);
  const infeng_status status = abi.create(&extended, &made, &worker);
  if (status != INFENG_OK) {
    message[sizeof message - 1] = '\0';
    fail(status_code(status), full_name(), ": create returned status ", status, " (", status_code(status), ") ",
         message);
  }
  return {made, abi.destroy};
}

std::shared_ptr<const Library> open_library(const std::string& path, const std::string& features) {
  char resolved[PATH_MAX];
  // A full path, because dlopen searches the system's folders for a bare name.
  if (realpath(path.c_str(), resolved) == nullptr) fail("not_found", path, ": ", std::strerror(errno));
  check_object_file(resolved);
  // detect_cpu() asks Linux for tile registers. A child process must ask again after exec, such as the process in which
  // a library is tried.
  static const CpuInfo cpu = detect_cpu();
  static_cast<void>(cpu);
  FpGuard fp;
  void* handle = dlopen(resolved, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail("dlopen_failed", path, ": ", dlerror());
  void* symbol = dlsym(handle, "infeng_library");
  if (symbol == nullptr) {
    fail("missing_symbol", path, ": does not export infeng_library, so it is not an INF-ENG kernel library");
  }
  // Never destroyed: kernels point into their libraries, and a library may keep pointers to its host.
  using Key = std::pair<void*, std::string>;
  static auto& all_opened = *new std::map<Key, Opened>;
  static auto& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  const auto entry = all_opened.try_emplace(Key(handle, features)).first;
  Opened& opened = entry->second;
  if (opened.library == nullptr) {
    opened.host = {sizeof(infeng_host), INFENG_ABI_MAJOR,           INFENG_ABI_MINOR, nullptr,
                   INFENG_CORE_VERSION, entry->first.second.c_str()};
    opened.library = read_library(resolved, reinterpret_cast<infeng_library_fn>(symbol), opened.host);
  }
  return opened.library;
}

infeng_status enter_thread(const std::vector<const Library*>& libraries, const Library** culprit) {
  for (const Library* library : libraries) {
    if (std::find(entered.libraries.begin(), entered.libraries.end(), library) != entered.libraries.end()) continue;
    const infeng_status status = library->thread_enter == nullptr ? INFENG_OK : library->thread_enter();
    if (status != INFENG_OK) {
      *culprit = library;
      return status;
    }
    entered.libraries.push_back(library);
  }
  return INFENG_OK;
}

}  // namespace infeng
