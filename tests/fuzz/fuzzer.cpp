// The entry point that libFuzzer calls; LFM2_FUZZ_TARGET names the parser.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const lfm2::fuzz::Target& target = lfm2::fuzz::find_target(LFM2_FUZZ_TARGET);
  target.run(std::as_bytes(std::span(data, size)));
  return 0;
}
