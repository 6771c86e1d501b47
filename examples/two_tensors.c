/* The C API: two matrices joined along their last axis, and the sums of the rows. */
#include <lfm2_kernels.h>
#include <stdio.h>

static int failed(int status) {
  if (status != LFM2_OK) fprintf(stderr, "two_tensors: %s\n", lfm2_status_string(status));
  return status != LFM2_OK;
}

int main(void) {
  float a[2 * 3] = {1, 2, 3, 4, 5, 6}, b[2 * 2] = {10, 20, 30, 40}, joined[2 * 5], sums[2];
  const int64_t a_shape[2] = {2, 3}, b_shape[2] = {2, 2}, joined_shape[2] = {2, 5}, sums_shape[1] = {2};
  lfm2_tensor inputs[2], output, rows;
  if (failed(lfm2_tensor_dense(&inputs[0], a, LFM2_FP32, LFM2_CPU, 2, a_shape)) ||
      failed(lfm2_tensor_dense(&inputs[1], b, LFM2_FP32, LFM2_CPU, 2, b_shape)) ||
      failed(lfm2_tensor_dense(&output, joined, LFM2_FP32, LFM2_CPU, 2, joined_shape)) ||
      failed(lfm2_tensor_dense(&rows, sums, LFM2_FP32, LFM2_CPU, 1, sums_shape)) ||
      failed(lfm2_concat(inputs, 2, &output, 1, NULL)) ||
      failed(lfm2_reduce(LFM2_SUM, &output, &rows, 1u << 1, NULL, 0, NULL)))
    return 1;
  for (int r = 0; r < 2; ++r) {
    for (int c = 0; c < 5; ++c) printf("%5.0f", (double)joined[r * 5 + c]);
    printf("   sum %.0f\n", (double)sums[r]);
  }
  return sums[0] == 36 && sums[1] == 85 ? 0 : 1;
}
