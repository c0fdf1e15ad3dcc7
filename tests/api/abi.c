/* Calls every function of fa3.h from C99: two keys of equal weight, so every row of O is the mean of V's rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fa3/fa3.h"

enum { heads = 2, seqlen = 2, d = 8, count = seqlen * heads * d };

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s (fa3_last_error: \"%s\")\n", what, fa3_last_error());
  ++failures;
}

static fa3_tensor dense(float* data) {
  fa3_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = FA3_F32;
  tensor.stride[0] = count;
  tensor.stride[1] = heads * d;
  tensor.stride[2] = d;
  tensor.stride[3] = 1;
  return tensor;
}

int main(void) {
  float q[count], k[count], v[count], o[count], lse[heads * seqlen], d_o[count], dq[count], dk[count], dv[count];
  fa3_forward_params params;
  fa3_backward_params backward;
  size_t workspace_bytes = 1;
  const char* kernel = NULL;
  int i;

  for (i = 0; i < count; ++i) {
    q[i] = 1.0f;
    k[i] = 0.0f;
    v[i] = i < heads * d ? 1.0f : 2.0f;
    o[i] = -1.0f;
    d_o[i] = 1.0f;
    dq[i] = dk[i] = dv[i] = -1.0f;
  }

  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.api_version = FA3_API_VERSION;
  params.device = FA3_DEVICE_CPU;
  params.batch = 1;
  params.heads = params.kv_heads = heads;
  params.seqlen_q = params.seqlen_k = seqlen;
  params.d = params.d_v = d;
  params.q = dense(q);
  params.k = dense(k);
  params.v = dense(v);
  params.o = dense(o);
  params.lse = lse;
  params.lse_stride[0] = heads * seqlen;
  params.lse_stride[1] = seqlen;
  params.lse_stride[2] = 1;

  expect(fa3_device_available(FA3_DEVICE_CPU) == FA3_OK, "fa3_device_available: the cpu is there");
  expect(fa3_forward_supported(&params) == FA3_OK, "fa3_forward_supported");
  expect(fa3_forward_kernel(&params, &kernel) == FA3_OK && strncmp(kernel, "cpu_", 4) == 0, "fa3_forward_kernel");
  expect(fa3_forward_workspace_size(&params, &workspace_bytes) == FA3_OK, "fa3_forward_workspace_size");
  expect(workspace_bytes == 0, "no workspace on the cpu");
  expect(fa3_forward(&params, NULL, 0, NULL) == FA3_OK, "fa3_forward");
  expect(strcmp(fa3_last_error(), "") == 0, "fa3_last_error: empty after success");
  for (i = 0; i < count; ++i) expect(o[i] == 1.5f, "o is the mean of v");
  for (i = 0; i < heads * seqlen; ++i) expect(fabs(lse[i] - log(2.0)) < 1e-6, "lse = log(2)");

  memset(&backward, 0, sizeof backward);
  backward.struct_size = sizeof backward;
  backward.api_version = FA3_API_VERSION;
  backward.device = FA3_DEVICE_CPU;
  backward.batch = 1;
  backward.heads = backward.kv_heads = heads;
  backward.seqlen_q = backward.seqlen_k = seqlen;
  backward.d = backward.d_v = d;
  backward.d_o = dense(d_o);
  backward.q = dense(q);
  backward.k = dense(k);
  backward.v = dense(v);
  backward.o = dense(o);
  backward.dq = dense(dq);
  backward.dk = dense(dk);
  backward.dv = dense(dv);
  backward.lse = lse;
  memcpy(backward.lse_stride, params.lse_stride, sizeof backward.lse_stride);
  backward.deterministic = 1;
  kernel = NULL;
  workspace_bytes = 1;
  expect(fa3_backward_supported(&backward) == FA3_OK, "fa3_backward_supported");
  expect(fa3_backward_kernel(&backward, &kernel) == FA3_OK && strncmp(kernel, "cpu_", 4) == 0, "fa3_backward_kernel");
  expect(fa3_backward_workspace_size(&backward, &workspace_bytes) == FA3_OK, "fa3_backward_workspace_size");
  expect(workspace_bytes == 0, "no workspace on the cpu");
  expect(fa3_backward(&backward, NULL, 0, NULL) == FA3_OK, "fa3_backward");
  /* P is 1/2, dP 8 and 16, D 12: dS is -2 and 2. The keys are 0, the queries 1, and the scale is 1 / sqrt(8). */
  for (i = 0; i < count; ++i) {
    const double sign = i < heads * d ? -1.0 : 1.0;
    expect(dq[i] == 0.0f, "dq is 0");
    expect(fabs(dk[i] - sign * 4.0 / sqrt(8.0)) < 1e-5, "dk is 2 dS scale");
    expect(fabs(dv[i] - 1.0) < 1e-6, "dv is half of both rows of dO");
  }
  backward.lse = NULL;
  expect(fa3_backward(&backward, NULL, 0, NULL) == FA3_INVALID_ARGUMENT, "no lse is refused");
  expect(strstr(fa3_last_error(), "lse is null") != NULL, "fa3_last_error names lse");

  params.d = 12;
  expect(fa3_forward(&params, NULL, 0, NULL) == FA3_INVALID_ARGUMENT, "d = 12 is refused");
  expect(strstr(fa3_last_error(), "d is 12") != NULL, "fa3_last_error names d and its value");

  /* A device number no machine has: an error in words, with and without a GPU. */
  expect(fa3_init(1 << 20) != FA3_OK, "fa3_init: no such device");
  expect(strcmp(fa3_last_error(), "") != 0, "fa3_init says why");

  expect(strcmp(fa3_status_string(FA3_OK), "ok") == 0, "fa3_status_string");
  expect(fa3_version() == 10000 * FA3_VERSION_MAJOR + 100 * FA3_VERSION_MINOR + FA3_VERSION_PATCH, "fa3_version");
  expect(strlen(fa3_source_hash()) == 64, "fa3_source_hash is a SHA-256 in hex");
  return failures != 0;
}
