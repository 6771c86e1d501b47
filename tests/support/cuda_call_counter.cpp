// Counts, by name, the calls that a program and its libraries make to the CUDA driver. The driver loads this library
// where CUDA_INJECTION64_PATH names it; at the end it writes "NAME COUNT" lines to $LFM2_CUDA_CALLS.RANK.
// launch/gpu-check.sh compares two runs of different length: calls that allocate or wait must be equally many.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Counter {
  std::mutex mutex;
  std::map<std::string, long> calls;

  ~Counter() {
    const char* path = std::getenv("LFM2_CUDA_CALLS");
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (path == nullptr) return;
    const std::string name = std::string(path) + "." + (rank == nullptr ? "0" : rank);
    std::FILE* file = std::fopen(name.c_str(), "w");
    if (file == nullptr) return;
    for (const auto& [call, count] : calls) std::fprintf(file, "%s %ld\n", call.c_str(), count);
    std::fclose(file);
  }
};

Counter& counter() {
  static Counter instance;
  return instance;
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  const auto* info = static_cast<const CUpti_CallbackData*>(data);
  if (info->callbackSite != CUPTI_API_ENTER) return;
  const std::lock_guard lock(counter().mutex);
  ++counter().calls[info->functionName];
}

}  // namespace

extern "C" int InitializeInjection() {
  counter();
  CUpti_SubscriberHandle subscriber = nullptr;
  if (cuptiSubscribe(&subscriber, on_call, nullptr) != CUPTI_SUCCESS) return 0;
  return cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS ? 1 : 0;
}
