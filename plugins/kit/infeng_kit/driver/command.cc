// The command infeng-conformance: a kernel library against the reference kernels, without Python. It takes the features
// of this processor, and the reference of the infeng-core that is installed beside it. Exit status 0 if every kernel
// that runs here equals the reference, 1 if one differs or none runs, 2 for wrong words. SPDX-License-Identifier:
// Apache-2.0
#include <glob.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "conformance.h"

namespace {

const char kHelp[] =
    "usage: infeng-conformance LIBRARY.so [options]\n"
    "Compares each kernel of a library with the reference kernels of INF-ENG, byte for byte, on random cases of\n"
    "awkward sizes, in memory that ends where arrays end. The library is loaded into this process.\n"
    "  --kernel PART      only kernels with this in their names\n"
    "  --share S          a share of the cases, 0 to 1, at least one for each kernel; default: 1\n"
    "  --features A,B     features of the processor that kernels may use; default: those of this one\n"
    "  --reference FILE   libinfeng_reference.so; default: that of the infeng-core beside this program\n";

// The features of this processor by the names of plugin.yaml.
std::string features_here() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, found;
  while (std::getline(info, line)) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    for (std::string word; words >> word;) {
      if (word == "avx512vbmi") word = "avx512_vbmi";
      if (word == "asimd") word = "neon";
      if (word == "asimddp") word = "dotprod";
      found += (found.empty() ? "" : ",") + word;
    }
    break;
  }
  return found;
}

// The reference library of the environment whose folder of programs holds this one; "" if there is none.
std::string reference_here() {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0 || size_t(length) >= sizeof self) return "";
  std::string folder(self, size_t(length));
  for (int i = 0; i < 2; ++i) folder.resize(std::min(folder.rfind('/'), folder.size()));
  for (const char* const packages : {"site-packages", "dist-packages"}) {
    const std::string pattern = folder + "/lib/python3*/" + packages + "/infeng_core/libinfeng_reference.so";
    glob_t paths{};
    const bool is_there = glob(pattern.c_str(), 0, nullptr, &paths) == 0 && paths.gl_pathc > 0;
    const std::string found = is_there ? paths.gl_pathv[0] : "";
    globfree(&paths);
    if (is_there) return found;
  }
  return "";
}

double share_of(const char* text) {
  char* end = nullptr;
  const double share = strtod(text, &end);
  if (end == text || *end != '\0' || !(share >= 0.0 && share <= 1.0))
    Library::die("infeng-conformance: --share %s: it is no number from 0 to 1", text);
  return share;
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  request.features = features_here();
  std::string library, reference;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "-h" || word == "--help") return fputs(kHelp, stdout) < 0;
    const bool is_option = word.rfind("--", 0) == 0;
    if (is_option && i + 1 == argc) Library::die("infeng-conformance: %s: its value is missing", argv[i]);
    if (word == "--kernel")
      request.part = argv[++i];
    else if (word == "--share")
      request.share = share_of(argv[++i]);
    else if (word == "--features")
      request.features = argv[++i];
    else if (word == "--reference")
      reference = argv[++i];
    else if (is_option || !library.empty())
      Library::die("infeng-conformance: %s: it is unknown, or one library too many; --help lists what there is",
                   argv[i]);
    else
      library = word;
  }
  if (library.empty()) Library::die("%s", kHelp);
  if (library.find('/') == std::string::npos) library = "./" + library;  // a file, and no library of the system
  if (reference.empty()) reference = reference_here();
  if (reference.empty())
    Library::die("infeng-conformance: infeng-core is not installed beside this program: name its %s",
                 "libinfeng_reference.so by --reference");
  const Outcome outcome = conformance(reference.c_str(), library.c_str(), request);
  if (outcome.compared == 0) fputs("infeng-conformance: no kernel was compared\n", stderr);
  return outcome.compared == 0 || outcome.failures != 0;
}
