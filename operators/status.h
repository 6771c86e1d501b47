// The result of every operator: success, or the reason of failure. The C API returns it as an int. On the CPU,
// operators that allocate may throw std::bad_alloc, which the C API returns as kNoMemory.
#pragma once

namespace lfm2::operators {

enum class Status : int {
  kOk = 0,
  kInvalid = 1,        // a null pointer, an unknown dtype, device, layout, rank, axis or function
  kShapeMismatch = 2,  // each tensor is valid, but their shapes do not match
  kNoCuda = 3,         // a tensor is on a GPU, but the build is without CUDA
  kNoMemory = 4,       // the host has not enough memory
  kTooLarge = 5,       // a GPU would need more than 2^31 - 1 thread blocks in one launch
  kCudaError = 1000,   // kCudaError + n: CUDA's error n, of the launch, a copy or an allocation
};

constexpr bool ok(Status status) { return status == Status::kOk; }

// One line of English text, never null. CUDA's errors have CUDA's own text.
const char* status_text(Status status);

}  // namespace lfm2::operators

// Leaves the function with the first status that is not kOk.
#define STATUS_CHECK(call)                                                       \
  do {                                                                           \
    const ::lfm2::operators::Status status_check_result = (call);                \
    if (!::lfm2::operators::ok(status_check_result)) return status_check_result; \
  } while (false)
