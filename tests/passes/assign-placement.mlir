// RUN: planonce opt %s --pass-pipeline='assign-placement{device=cpu:1}' --remarks

// What has no device gets it; what has one keeps it; data and the return get none.
// CHECK: remark: operations: 1 on cpu:0, 1 on cpu:1 [assign-placement]
// CHECK-LABEL: func.func @step
// CHECK: "plan.weight"() {name = "w"} : () -> tensor<4xf32>
// CHECK: %[[A:.*]] = "onnx.add"(%arg0, %{{.*}}) {plan.device = "cpu:1"}
// CHECK: %[[M:.*]] = "onnx.mul"(%[[A]], %[[A]]) {plan.device = "cpu:0"}
// CHECK-NOT: plan.device
// CHECK: return %[[M]]
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  %w = "plan.weight"() {name = "w"} : () -> tensor<4xf32>
  %0 = "onnx.add"(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.mul"(%0, %0) {plan.device = "cpu:0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

// A program that is placed already does not change.
// CHECK: remark: operations: 1 on cuda:3
// CHECK-LABEL: func.func @placed
// CHECK: "onnx.neg"(%arg0) {plan.device = "cuda:3"}
// CHECK-NOT: cpu:1
func.func @placed(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:3"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @unknown_device(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@unknown {{not the name of a device}}
  %0 = "onnx.neg"(%x) {plan.device = "npu"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
