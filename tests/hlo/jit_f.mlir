// a comment
module @jit_f {
  func.func public @main(%arg0: tensor<2x3xf32>) -> tensor<2x2xf32> {
    %0 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [1] : (tensor<2x3xf32>, tensor<2x3xf32>)
      -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
}
