// RUN: planonce opt %s --pass-pipeline='canonicalize'

// What nothing uses goes away; a weight that nothing reads is then not part of the plan.
// CHECK-LABEL: func.func @drops
// CHECK-NEXT: %[[R:.*]] = "onnx.neg"(%arg0)
// CHECK-NEXT: return %[[R]]
// CHECK-NOT: plan.weight
func.func @drops(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "plan.weight"() {name = "unused"} : () -> tensor<4xf32>
  %1 = "onnx.add"(%a, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "onnx.neg"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// A written cache that is returned stays, and so does an allocation.
// CHECK-LABEL: func.func @keeps
// CHECK: "plan.alloc"
// CHECK: %[[W:.*]] = "plan.write_slice"(%arg0, %arg1, %arg2) {axis = 2 : i64}
// CHECK: return %[[W]]
func.func @keeps(%cache: tensor<?x2x?x8xf32>, %new: tensor<?x2x?x8xf32>, %offset: tensor<?xi64>,
                 %shape: tensor<1xi64>) -> tensor<?x2x?x8xf32> {
  %0 = "plan.alloc"(%shape) {to = "cpu:0"} : (tensor<1xi64>) -> tensor<?xf32>
  %1 = "plan.write_slice"(%cache, %new, %offset) {axis = 2 : i64}
    : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %1 : tensor<?x2x?x8xf32>
}

// -----

func.func @refuses(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+2 {{operand 'B' is not optional}}
  %none = "onnx.no_value"() : () -> none
  %0 = "onnx.add"(%x, %none) : (tensor<4xf32>, none) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
