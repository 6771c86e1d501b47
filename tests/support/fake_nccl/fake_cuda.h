// How the fake NCCL puts work on a stream of the fake CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// When the stream reaches this work, `work` is called until it returns true.
void enqueue_fake_work(cudaStream_t stream, std::function<bool()> work);
