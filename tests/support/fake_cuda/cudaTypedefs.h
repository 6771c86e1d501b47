// The part of CUDA's driver that peer memory needs; see README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;
typedef cudaStream_t CUstream;
typedef uintptr_t CUdeviceptr;
typedef uint32_t cuuint32_t;

#define CU_STREAM_WRITE_VALUE_DEFAULT 0x0
#define CU_STREAM_WAIT_VALUE_GEQ 0x0

typedef CUresult (*PFN_cuStreamWriteValue32_v11070)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
typedef CUresult (*PFN_cuStreamWaitValue32_v11070)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
