// XXH3-128 of a tensor's bytes, streamed; the text form is the 32 hex digits that xxhsum -H2 prints.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lfm2 {

class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }
  std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace lfm2
