// LFM2_HOST_DEVICE marks functions that the CPU and kernels share.
#pragma once

#ifdef __CUDACC__
#define LFM2_HOST_DEVICE __host__ __device__
#else
#define LFM2_HOST_DEVICE
#endif
