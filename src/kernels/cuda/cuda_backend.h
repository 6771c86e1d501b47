// The GPU as a backend, and the facts about each GPU: what main, the tests and the transports need of CUDA without its
// headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace lfm2 {

struct CudaDeviceFacts {
  std::string name;            // "NVIDIA H200"
  std::string uuid;            // "GPU-8f3b…", as nvidia-smi prints it; tells whether two ranks share a GPU
  std::string bus_id;          // "0000:1B:00.0"
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  uint64_t free_bytes = 0, total_bytes = 0;  // as of the call
};

// The number of GPUs that this process sees; 0 without a driver.
int cuda_device_count();

// The facts about one GPU, which becomes the calling thread's current device. Switching back to the first GPU would
// create a context there, half a GB for each rank. Error(kUnavailable) if there is no such device.
CudaDeviceFacts cuda_device_facts(int device);

// The versions of CUDA that this program was built with and that the driver supports, such as "13.0, driver 12.8".
std::string cuda_versions();

// Another GPU that this process sees, as `device` reaches it.
struct CudaPeer {
  std::string uuid;
  bool direct = false;   // one GPU reads the other's memory without the host
  bool atomics = false;  // also with atomic operations, which NVLink has but PCIe has not
};
std::vector<CudaPeer> cuda_peers(int device);

struct CudaOptions {
  bool plain_fp32 = false;  // --fp32-math simt: fp32 products use no tensor cores
  bool portable = false;    // for tests: only what every GPU from sm_80 on has
};

// Makes `device` current for the calling thread, which must be the only one that uses the backend.
// Error(kUnavailable) if there is no such device or this build has no code for it.
std::unique_ptr<Backend> make_cuda_backend(int device, CudaOptions options = {});

}  // namespace lfm2
