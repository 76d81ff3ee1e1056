// The conformance check for sanitizers, debuggers and emulators, which name everything:
//   conformance REFERENCE.so CANDIDATE.so [features] [share of the cases, 0 to 1] [part of the kernels' names]
// Exit status 1 if any kernel differs. `command.cc` finds the reference and the features by itself.
// SPDX-License-Identifier: Apache-2.0
#include "conformance.h"

int main(int argc, char** argv) {
  if (argc < 3) Library::die("usage: %s REFERENCE.so CANDIDATE.so [features] [share] [part of a name]", argv[0]);
  Request request;
  if (argc > 3) request.features = argv[3];
  if (argc > 4) request.share = atof(argv[4]);
  if (argc > 5) request.part = argv[5];
  return conformance(argv[1], argv[2], request).failures != 0;
}
