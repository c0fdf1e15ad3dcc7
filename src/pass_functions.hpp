// The signatures of fa3::forward and fa3::backward, for what stands in their place.
#pragma once

#include <functional>
#include <optional>

#include "fa3/fa3.hpp"

namespace fa3 {

using ForwardFunction = std::function<Status(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                                             const Tensor& o, const std::optional<RowTensor>& lse,
                                             const ForwardOptions& options, Workspace workspace, fa3_stream stream)>;

using BackwardFunction =
    std::function<Status(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                         const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                         const Tensor& dv, const BackwardOptions& options, Workspace workspace, fa3_stream stream)>;

}  // namespace fa3
