/* fa3: exact attention for NVIDIA Hopper GPUs, with a CPU backend. The C ABI.
 *
 *   O = softmax(softmax_scale * Q K^T + mask) V,   LSE = log(sum(exp(softmax_scale * Q K^T + mask)))
 *
 * and the gradients with respect to Q, K and V of a scalar whose gradient with respect to O is dO.
 *
 * No function throws or aborts, and once a device's kernels are loaded (fa3_init, or the first call that needs them)
 * none allocates device memory or synchronises. Every function that returns a status leaves the reason of a failure in
 * fa3_last_error() of the calling thread. All functions are thread-safe.
 */
#ifndef FA3_FA3_H
#define FA3_FA3_H

#include <stddef.h>
#include <stdint.h>

#define FA3_VERSION_MAJOR 0
#define FA3_VERSION_MINOR 1
#define FA3_VERSION_PATCH 0

/* Version of the parameter structs: another one if a field that is there changes. New fields come at the end, where 0
 * stands for what was done before there was the field; struct_size says which of them the caller knows. So a program
 * runs with a later library as it is. A library refuses a struct larger than its own. */
#define FA3_API_VERSION 1u

#if defined(_WIN32)
#define FA3_API
#else
#define FA3_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fa3_status {
  FA3_OK = 0,
  FA3_INVALID_ARGUMENT = 1,    /* the call is wrong whatever the machine: fix the argument named in fa3_last_error() */
  FA3_NOT_SUPPORTED = 2,       /* a legal request that this version has no kernel for */
  FA3_WORKSPACE_TOO_SMALL = 3, /* workspace null, misaligned or smaller than the pass's _workspace_size() says */
  FA3_NO_DEVICE = 4,           /* no GPU, no driver or one too old, or a GPU that is not compute capability 9.0 */
  FA3_CUDA_ERROR = 5,          /* the CUDA runtime refused; its words are in fa3_last_error() */
  FA3_INTERNAL = 6             /* out of host memory, or a defect of fa3 */
} fa3_status;

typedef enum fa3_dtype {
  FA3_F16 = 1,
  FA3_BF16 = 2,
  FA3_E4M3 = 3, /* FP8: four bits of exponent, three of mantissa, at most 448, no infinity; forward pass only */
  FA3_F32 = 4   /* cpu only */
} fa3_dtype;

/* Rows of a sequence that share a scale of an e4m3 tensor. */
#define FA3_SCALE_ROWS 128

/* fa3_scales.largest with which products of e4m3 tensors fit sums in f16. */
#define FA3_E4M3_NARROW_QK 15.0f
#define FA3_E4M3_NARROW_V 1.125f

/* Scales of an e4m3 tensor: an element stands for its e4m3 value times its scale. f32, on the device of the tensor,
 * aligned to 4 bytes. They must be positive and finite; their values are not looked at. */
typedef struct fa3_scales {
  float* data;       /* NULL: all are 1 */
  int32_t per_block; /* 0: [batch, kv_heads], one for a key/value head, for q that of all its query heads;
                        1: [batch, heads, ceil(seqlen / FA3_SCALE_ROWS)], one for each block of rows of each head */
  float largest;     /* a number of e4m3, at least 1, that no value of the tensor exceeds in size (which is not looked
                        at); 0: 448. Attention on cuda is faster with no more than FA3_E4M3_NARROW_QK for q and k and
                        FA3_E4M3_NARROW_V for v */
  int64_t stride[3]; /* elements, for batch, head and block (ignored if not per_block); >= 0; 0 repeats */
} fa3_scales;

typedef enum fa3_device {
  FA3_DEVICE_CUDA = 1, /* the device of the calling thread's current CUDA context */
  FA3_DEVICE_CPU =
      2 /* all cores, or the environment variable FA3_NUM_THREADS if fewer; returns when the result is written */
} fa3_device;

/* A cudaStream_t (or CUstream) without the CUDA headers. */
typedef struct CUstream_st* fa3_stream;

/* Four-dimensional tensor [batch, sequence, head, feature]; its extents are fields of the parameter struct.
 * stride[i] is the distance of neighbours along dimension i in elements, >= 0; stride[3] must be 1 (but for v of e4m3
 * and dO; ignored where the extent is 1). Stride 0 repeats data and is allowed for inputs. Strides of dimensions with
 * extent <= 1 are ignored. data may be NULL only if the tensor has no elements; it must be aligned to its element. */
typedef struct fa3_tensor {
  void* data;
  int32_t dtype;    /* fa3_dtype */
  int32_t reserved; /* 0 */
  int64_t stride[4];
} fa3_tensor;

/* Zero-initialise, then set struct_size = sizeof(fa3_forward_params) and api_version = FA3_API_VERSION. A struct_size
 * that ends before sm_margin or before q_scale, as earlier releases had it, is taken, too. */
typedef struct fa3_forward_params {
  uint32_t struct_size;
  uint32_t api_version;
  int32_t device; /* fa3_device, required: it is never guessed */
  int32_t causal; /* 1: row i sees keys j <= i + seqlen_k - seqlen_q (aligned bottom-right); 0: all keys */

  int64_t batch;    /* >= 0 */
  int64_t heads;    /* query heads, a multiple of kv_heads */
  int64_t kv_heads; /* query head h reads key/value head h / (heads / kv_heads) */
  int64_t seqlen_q; /* >= 0 */
  int64_t seqlen_k; /* >= 0; with 0 every row of O is 0 and every LSE -inf */
  int64_t d;        /* features of q and k: a multiple of 8, 8..256; e4m3: of 16 */
  int64_t d_v;      /* features of v and o: likewise */

  fa3_tensor q; /* [batch, seqlen_q, heads, d] */
  fa3_tensor k; /* [batch, seqlen_k, kv_heads, d] */
  fa3_tensor v; /* [batch, seqlen_k, kv_heads, d_v] */
  fa3_tensor o; /* [batch, seqlen_q, heads, d_v], written; its elements must not overlap each other or an input */

  float* lse; /* optional (NULL): [batch, heads, seqlen_q], written; natural logarithm, -inf for rows without keys */
  int64_t lse_stride[3]; /* elements, for batch, head, row */

  float softmax_scale;       /* at most 2^64 in size; used only if softmax_scale_set, 0 and negative values included */
  int32_t softmax_scale_set; /* 0: softmax_scale is 1 / sqrt(d) */

  int32_t sm_margin; /* >= 0, below the device's number of SMs: the forward kernel leaves so many SMs to others, such as
                        kernels that communicate at the same time. Changes no bit of the result. The copies of layouts
                        that TMA cannot read, and of a d-major v, use all SMs. Ignored on cpu */
  int32_t reserved;  /* 0 */

  /* Of e4m3 only, else all zero. Then q, k and v are e4m3, aligned to 16 bytes, all strides but stride[3] multiples of
   * 16; on cuda they may repeat batch entries and heads by stride 0, but not overlap otherwise. v may also be d-major:
   * stride[1] is 1 then, and stride[3] a multiple of 16 (of a row with an odd number of keys the byte behind them is
   * read, and ignored). o is f16 or bf16. P is rounded to e4m3, too. On cuda the tensor core adds products of e4m3 with
   * fewer bits than f32 has, and all other sums are f32. If `largest` is at most FA3_E4M3_NARROW_QK for q and k and
   * FA3_E4M3_NARROW_V for v, it adds in f16, and the softmax of a block is in f16, too (docs/numerics.md, FP8). Where a
   * value is larger all the same, softmax_scale * q . k beyond 5,600, or softmax_scale * q_scale * k_scale beyond
   * 45,000, O and LSE of rows that use it may be anything. */
  fa3_scales q_scale;
  fa3_scales k_scale;
  fa3_scales v_scale;
} fa3_forward_params;

/* Optional warm-up for CUDA device number `cuda_device`: loads the kernels and sets their attributes, so that nothing
 * of that happens first inside a stream capture. Makes no lasting change of the current device. */
FA3_API fa3_status fa3_init(int cuda_device);

/* FA3_OK if this process can run attention on `device` (fa3_device) now; otherwise the status, with the reason in
 * fa3_last_error(). For FA3_DEVICE_CUDA it asks for the current device. */
FA3_API fa3_status fa3_device_available(int32_t device);

/* FA3_OK if fa3_forward would accept `params`; otherwise the status, with the reason in fa3_last_error(). Pure host:
 * touches no GPU, so it does not know the number of SMs that sm_margin must be below, and does not read through the
 * data pointers. */
FA3_API fa3_status fa3_forward_supported(const fa3_forward_params* params);

/* Sets *name to that of the kernel fa3_forward runs for these parameters: on cuda a row of the table of kernels, such
 * as "f16_d128"; on cpu "cpu_" and the instruction set, such as "cpu_avx2". The string is never freed. Pure host. */
FA3_API fa3_status fa3_forward_kernel(const fa3_forward_params* params, const char** name);

/* Bytes of workspace fa3_forward needs for exactly these parameters (sizes, strides, alignment of the pointers). Pure
 * host. On the cpu device it is 0. */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, size_t* bytes);

/* Enqueues the forward pass on `stream` (NULL: the default stream). `workspace`: device memory, 256-byte aligned, with
 * any content; it may be reused once the work is done. May be captured into a CUDA graph and replayed. If a status
 * other than FA3_OK is returned nothing was written; only after FA3_CUDA_ERROR O and LSE may be in part. On the cpu
 * device `workspace` and `stream` are ignored. */
FA3_API fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes,
                               fa3_stream stream);

/* From 16 bits to e4m3, for the forward pass: first rotary embedding, if rope_cos is given, then incoherent processing,
 * if `rotate`, then the scale:  y = e4m3(x' / scale), rounded to nearest even, values above 448 becoming 448, Inf and
 * NaN becoming NaN; scale.largest, if not 0, takes the place of 448 here and below. docs/numerics.md, FP8, defines
 * every step to the bit.
 *
 * Zero-initialise, then set struct_size = sizeof(fa3_quantize_params) and api_version = FA3_API_VERSION. */
typedef enum fa3_scaling {
  FA3_SCALING_BLOCK = 1,  /* scale.per_block = 1: the largest finite |x'| of FA3_SCALE_ROWS rows of a head is 448 */
  FA3_SCALING_HEAD = 2,   /* scale.per_block = 0: that of `heads / scale_heads` neighbouring heads of a batch entry */
  FA3_SCALING_TENSOR = 3, /* that of the whole tensor: one scale, at scale.data[0] (strides 0) */
  FA3_SCALING_GIVEN = 4   /* scale is read, in either form; NULL: 1 */
} fa3_scaling;

typedef struct fa3_quantize_params {
  uint32_t struct_size;
  uint32_t api_version;
  int32_t device;
  int32_t scaling; /* fa3_scaling */

  int64_t batch;       /* >= 0 */
  int64_t seqlen;      /* >= 0 */
  int64_t heads;       /* of x */
  int64_t scale_heads; /* heads of scale where it is not per block: a divisor of heads, kv_heads for a q; 0: heads */
  int64_t d;           /* features: a multiple of 16, 16..256 */

  fa3_tensor x;     /* [batch, seqlen, heads, d], f16 or bf16; on cpu also f32 */
  fa3_tensor y;     /* [batch, seqlen, heads, d], e4m3, written; must not overlap x or itself */
  fa3_scales scale; /* of y; written unless given or x has no elements. A head of zeros gets scale 1 */

  const float* rope_cos;    /* NULL: no rotary embedding; else [seqlen, rope_d / 2] */
  const float* rope_sin;    /* likewise */
  int64_t rope_stride;      /* elements from one position to the next, in both; 0 repeats */
  int64_t rope_d;           /* features that are rotated, the first ones: even, 2..d */
  int32_t rope_interleaved; /* 1: the pairs are features 2i, 2i + 1; 0: i, i + rope_d / 2 */

  int32_t rotate; /* 1: x' = (x D) H, with random signs D and an orthogonal H: what q and k rotated with one seed have
                     as scores stays the same, outliers are spread over the features */
  uint64_t seed;  /* of the signs */
} fa3_quantize_params;

/* As their namesakes of the forward pass. The workspace holds the maxima that more than one block has to know. */
FA3_API fa3_status fa3_quantize_supported(const fa3_quantize_params* params);
FA3_API fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes);
FA3_API fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes,
                                fa3_stream stream);

/* The backward pass. With P = exp(softmax_scale * Q K^T - LSE), 0 where masked, and D = rowsum(dO * O):
 *
 *   dV = P^T dO,   dS = P * (dO V^T - D),   dQ = softmax_scale * dS K,   dK = softmax_scale * dS^T Q
 *
 * O and LSE may be those of a longer key sequence of which k and v are a part, as where devices share a sequence: then
 * dK and dV are the part's, and the dQ of all parts add up. The scalar may depend on O alone: there is no dLSE. Rows
 * that see no key have zero gradient whatever they hold, rows whose LSE is -inf if their Q, dO and O are finite.
 *
 * Zero-initialise, then set struct_size = sizeof(fa3_backward_params) and api_version = FA3_API_VERSION. Fields of the
 * same name mean the same as in fa3_forward_params. */
typedef struct fa3_backward_params {
  uint32_t struct_size;
  uint32_t api_version;
  int32_t device;
  int32_t causal;

  int64_t batch;
  int64_t heads;
  int64_t kv_heads; /* dk and dv of a head are sums over its heads / kv_heads query heads, taken in f32 */
  int64_t seqlen_q; /* >= 0; with 0 dk and dv are 0 */
  int64_t seqlen_k; /* >= 0; with 0 dq is 0 */
  int64_t d;
  int64_t d_v;

  fa3_tensor d_o; /* dO [batch, seqlen_q, heads, d_v]; its stride[3] may be anything >= 0 */
  fa3_tensor q;   /* [batch, seqlen_q, heads, d] */
  fa3_tensor k;   /* [batch, seqlen_k, kv_heads, d] */
  fa3_tensor v;   /* [batch, seqlen_k, kv_heads, d_v] */
  fa3_tensor o;   /* [batch, seqlen_q, heads, d_v], read */

  const float* lse; /* required: [batch, heads, seqlen_q], natural logarithm, as fa3_forward writes it */
  int64_t lse_stride[3];

  fa3_tensor dq; /* of q's extents, written; the elements of dq, dk and dv must not overlap each other or an input */
  fa3_tensor dk; /* of k's extents, written */
  fa3_tensor dv; /* of v's extents, written */

  float softmax_scale;
  int32_t softmax_scale_set;

  int32_t sm_margin;     /* of the main kernel, at d = 256 in pairs of SMs; those before and after it use all SMs */
  int32_t deterministic; /* 1: the same bits in every run; 0: sums may be taken in any order. On cpu always the same */
} fa3_backward_params;

/* As fa3_forward_supported, fa3_forward_kernel and fa3_forward_workspace_size, for the backward pass. */
FA3_API fa3_status fa3_backward_supported(const fa3_backward_params* params);
FA3_API fa3_status fa3_backward_kernel(const fa3_backward_params* params, const char** name);
FA3_API fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);

/* As fa3_forward, for the backward pass: after FA3_CUDA_ERROR dQ, dK and dV may be written in part, after any other
 * status than FA3_OK nothing was. */
FA3_API fa3_status fa3_backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes,
                                fa3_stream stream);

FA3_API const char* fa3_status_string(fa3_status status);

/* Why the last call of this thread failed, "" if it did not. Valid until the thread's next call. */
FA3_API const char* fa3_last_error(void);

/* 10000 * major + 100 * minor + patch. */
FA3_API int fa3_version(void);

/* SHA-256 (hex) of the sources this library was built from, as printed by tools/source_hash. */
FA3_API const char* fa3_source_hash(void);

#ifdef __cplusplus
}
#endif

#endif
