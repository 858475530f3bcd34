// RUN: planonce opt %s --pass-pipeline='cse'

// The same pure operation twice is one; absent operands are merged too.
// CHECK-LABEL: func.func @merges
// CHECK-SAME: (%[[A:.*]]: tensor<4xf32>)
// CHECK: %[[W:.*]] = "plan.weight"() {name = "scale"}
// CHECK-NEXT: %[[M:.*]] = "onnx.mul"(%[[A]], %[[W]])
// CHECK-NEXT: return %[[M]], %[[M]]
func.func @merges(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "plan.weight"() {name = "scale"} : () -> tensor<4xf32>
  %1 = "plan.weight"() {name = "scale"} : () -> tensor<4xf32>
  %2 = "onnx.mul"(%a, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "onnx.mul"(%a, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2, %3 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Another name or another attribute is another value.
// CHECK-LABEL: func.func @keeps
// CHECK: "plan.weight"() {name = "a"}
// CHECK: "plan.weight"() {name = "b"}
// CHECK: "onnx.softmax"(%arg0) {axis = 0 : i64}
// CHECK: "onnx.softmax"(%arg0) {axis = 1 : i64}
func.func @keeps(%x: tensor<4x4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = "plan.weight"() {name = "a"} : () -> tensor<4xf32>
  %1 = "plan.weight"() {name = "b"} : () -> tensor<4xf32>
  %2 = "onnx.softmax"(%x) {axis = 0 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "onnx.softmax"(%x) {axis = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// Two allocations are two buffers, never one.
// CHECK-LABEL: func.func @two_buffers
// CHECK-COUNT-2: "plan.alloc"
func.func @two_buffers(%shape: tensor<1xi64>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "plan.alloc"(%shape) {to = "cpu:0"} : (tensor<1xi64>) -> tensor<?xf32>
  %1 = "plan.alloc"(%shape) {to = "cpu:0"} : (tensor<1xi64>) -> tensor<?xf32>
  return %0, %1 : tensor<?xf32>, tensor<?xf32>
}

// -----

func.func @refuses(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{unknown attribute 'axes'}}
  %0 = "onnx.softmax"(%x) {axes = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
