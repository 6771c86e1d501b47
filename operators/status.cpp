// The texts of a Status.
#include "operators/status.h"

#include "operators/gpu.h"

namespace lfm2::operators {

const char* status_text(Status status) {
  if (status >= Status::kCudaError)
    return gpu::error_text(static_cast<int>(status) - static_cast<int>(Status::kCudaError));
  switch (status) {
    case Status::kOk:
      return "done";
    case Status::kInvalid:
      return "invalid argument: a null pointer, or a dtype, device, layout, rank, axis or function that is not allowed";
    case Status::kShapeMismatch:
      return "the shapes do not belong together";
    case Status::kNoCuda:
      return "a tensor on a GPU, but this library was built without CUDA";
    case Status::kNoMemory:
      return "not enough memory on the host";
    case Status::kTooLarge:
      return "more than 2^31 - 1 thread blocks, the most of one launch on a GPU: split the batch over several calls";
    case Status::kCudaError:
      break;
  }
  return "unknown status";
}

}  // namespace lfm2::operators
