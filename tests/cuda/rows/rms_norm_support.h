// rms_norm on the GPU, for its own test and for those of operators with a norm in them.
#pragma once

#include "cuda/gpu.h"

namespace lfm2::test {

inline HostTensor rms_norm(const HostTensor& x, const HostTensor& weight) {
  const DeviceTensor in(x), scale(weight);
  on_gpu([&](Ops& ops) { ops.rms_norm(in, scale, 1e-5f, in); });
  HostTensor out(x->dtype, {x->dim(0), x->dim(1)});
  in.fetch(out);
  return out;
}

}  // namespace lfm2::test
