// What the parts of the fake CUDA and the tests' programs want of each other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

// When the stream reaches this work, `work` is called until it returns true.
void enqueue_fake_work(cudaStream_t stream, std::function<bool()> work);

// The number of a fault that FAKE_CUDA asks for on this rank, -1 where it does not.
double fake_fault(const char* name);

// Memory that cudaIpcGetMemHandle takes; zeros.
void* fake_device_memory(size_t bytes);
void free_fake_device_memory(void* data);
