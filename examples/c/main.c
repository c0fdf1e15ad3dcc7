/* fa3 from C, found by pkg-config: cc main.c $(pkg-config --cflags --libs fa3) */
#include <stdio.h>
#include <string.h>

#include "fa3/fa3.h"

enum { seqlen = 4, d = 8 };

static fa3_tensor dense(float* data) {
  fa3_tensor tensor = {0};
  tensor.data = data;
  tensor.dtype = FA3_F32;
  tensor.stride[0] = seqlen * d;
  tensor.stride[1] = d;
  tensor.stride[2] = d;
  tensor.stride[3] = 1;
  return tensor;
}

int main(void) {
  float q[seqlen * d], k[seqlen * d], v[seqlen * d], o[seqlen * d];
  for (int i = 0; i < seqlen * d; ++i) q[i] = 1, k[i] = 0, v[i] = (float)(i / d); /* row i of v holds i */

  fa3_forward_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.api_version = FA3_API_VERSION;
  params.device = FA3_DEVICE_CPU;
  params.causal = 1;
  params.batch = params.heads = params.kv_heads = 1;
  params.seqlen_q = params.seqlen_k = seqlen;
  params.d = params.d_v = d;
  params.q = dense(q);
  params.k = dense(k);
  params.v = dense(v);
  params.o = dense(o);
  if (fa3_forward(&params, NULL, 0, NULL) != FA3_OK) {
    fprintf(stderr, "%s\n", fa3_last_error());
    return 1;
  }
  for (int i = 0; i < seqlen; ++i) printf("o[%d] = %g\n", i, (double)o[i * d]); /* mean of 0 .. i */
  return 0;
}
