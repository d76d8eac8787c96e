module @m MODULE {
  func.func public @main(%a: tensor<4x8xf32>, %b: tensor<8x4xf32> ARGUMENT) -> (tensor<4x4xf32> RESULT, tensor<8x4xf32>) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    return %0, %b : tensor<4x4xf32>, tensor<8x4xf32>
  }
}
