#include "flatten.h"

namespace infeng_cuda {

bool flatten_steps(const infeng_args* args, Steps* out) {
  if (args->epilogue_count > static_cast<uint32_t>(kMostSteps)) return false;
  out->count = static_cast<int32_t>(args->epilogue_count);
  for (int32_t i = 0; i < out->count; ++i) {
    const infeng_epilogue& head = *args->epilogues[i];
    if (head.kind > 31 || (kFusedSteps & INFENG_EPILOGUE_BIT(head.kind)) == 0) return false;
    Step& step = out->list[i];
    step = {head.kind, head.function, head.scalar, head.limit, nullptr, 0, 0};
    switch (head.kind) {
      case INFENG_EPILOGUE_BIAS:
      case INFENG_EPILOGUE_ROW_SCALE: {
        const infeng_tensor& vector = reinterpret_cast<const infeng_operand_epilogue&>(head).operand;
        step.data = static_cast<const float*>(vector.data);
        step.columns = static_cast<int32_t>(vector.shape[0]);
        break;
      }
      case INFENG_EPILOGUE_RESIDUAL:
      case INFENG_EPILOGUE_MUL: {
        const Matrix matrix = matrix_of(reinterpret_cast<const infeng_operand_epilogue&>(head).operand);
        step.data = matrix.data;
        step.stride = matrix.stride;
        step.columns = matrix.columns;
        break;
      }
      case INFENG_EPILOGUE_GATED_MUL:
        if (out->gated >= 0) return false;
        out->gated = i;
        break;
      default:
        break;
    }
  }
  return true;
}

Matrix matrix_of(const infeng_tensor& tensor) {
  return {static_cast<float*>(tensor.data), tensor.strides[0], static_cast<int32_t>(tensor.shape[1])};
}

Rows8 rows8_of(const infeng_activation& activation) {
  return {static_cast<const int8_t*>(activation.q.data),
          static_cast<const float*>(activation.scale.data),
          static_cast<const int32_t*>(activation.sum.data),
          activation.q.strides[0],
          activation.scale.strides[0],
          activation.sum.strides[0]};
}

Panels panels_of(const infeng_weight& weight) {
  return {static_cast<const uint8_t*>(weight.data), weight.panel_bytes, static_cast<int32_t>(weight.k),
          static_cast<int32_t>(weight.panels)};
}

}  // namespace infeng_cuda
