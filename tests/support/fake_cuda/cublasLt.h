// The names that the check of cuBLASLt calls needs; nothing calls it here.
#pragma once

extern "C" {
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
const char* cublasLtGetStatusName(cublasStatus_t status);
}
