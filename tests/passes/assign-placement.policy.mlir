// RUN: planonce opt %s --pass-pipeline='assign-placement{place="layers[0:2]=cpu:0, layers[2:]=cpu:1"}'

// CHECK-LABEL: func.func @three_layers
// CHECK: "onnx.tensor_scatter"(%arg1{{.*}}plan.device = "cpu:0"
// CHECK: "onnx.tensor_scatter"(%arg2{{.*}}plan.device = "cpu:0"
// CHECK: "onnx.tensor_scatter"(%arg3{{.*}}plan.device = "cpu:1"
func.func @three_layers(%at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k0: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
    %k1: tensor<?x2x?x8xf32> {plan.name = "past.1.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 1 : i64},
    %k2: tensor<?x2x?x8xf32> {plan.name = "past.2.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 2 : i64})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
        tensor<?x2x?x8xf32> {plan.name = "present.1.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 1 : i64},
        tensor<?x2x?x8xf32> {plan.name = "present.2.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 2 : i64}) {
  %0 = "onnx.tensor_scatter"(%k0, %k0, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  %1 = "onnx.tensor_scatter"(%k1, %k1, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  %2 = "onnx.tensor_scatter"(%k2, %k2, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %0, %1, %2 : tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>
}

// -----

// A policy for another model: the error points at the place in the policy's text.
// expected-error@unknown {{these layers do not exist}}
// expected-error@unknown {{character 20 of}}
func.func @two_layers(%at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k0: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
    %k1: tensor<?x2x?x8xf32> {plan.name = "past.1.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 1 : i64})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
        tensor<?x2x?x8xf32> {plan.name = "present.1.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 1 : i64}) {
  %0 = "onnx.tensor_scatter"(%k0, %k0, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  %1 = "onnx.tensor_scatter"(%k1, %k1, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %0, %1 : tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>
}
