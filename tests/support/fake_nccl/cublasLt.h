// What the check of cuBLASLt calls names; nothing here calls it.
#pragma once

extern "C" {
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
const char* cublasLtGetStatusName(cublasStatus_t status);
}
