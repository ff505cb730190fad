/* SPDX-License-Identifier: Apache-2.0
 * A CUDA driver that lacks most calls, as one from long ago would. */
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuGetErrorName(int error, const char **text);
int cuGetErrorName(int error, const char **text) {
  (void)error;
  *text = "CUDA_ERROR_UNKNOWN";
  return 0;
}
