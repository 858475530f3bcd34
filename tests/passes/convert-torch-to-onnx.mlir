// RUN: planonce opt %s --pass-pipeline='convert-torch-to-onnx,canonicalize'

// A linear keeps its weight as the checkpoint has it; heads are split off without shape arithmetic, because
// the two sizes of the target are the ones the value has; roles stay on the arguments.
// CHECK-LABEL: func.func @heads
// CHECK-SAME: (%[[X:.*]]: tensor<?x?x8xf32> {plan.name = "x"}) -> (tensor<?x2x?x4xf32> {plan.name = "y"})
// CHECK: %[[W:.*]] = "plan.weight"() {name = "q.weight"} : () -> tensor<8x8xf32>
// CHECK: %[[P:.*]] = "onnx.ms_fused_mat_mul"(%[[X]], %[[W]]) {transB = 1 : i64}
// CHECK: %[[S:.*]] = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>}
// CHECK: %[[R:.*]] = "onnx.reshape"(%[[P]], %[[S]])
// CHECK: %[[T:.*]] = "onnx.transpose"(%[[R]]) {perm = array<i64: 0, 2, 1, 3>}
// CHECK-NOT: torch.
// CHECK-NOT: onnx.shape
// CHECK: return %[[T]]
func.func @heads(%x: !torch.vtensor<[?,?,8],f32> {plan.name = "x"})
    -> (!torch.vtensor<[?,2,?,4],f32> {plan.name = "y"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int-1 = torch.constant.int -1
  %none = torch.constant.none
  %w = torch.operator "torch.planonce.weight"() {plan.weight = "q.weight"} : () -> !torch.vtensor<[8,8],f32>
  %p = torch.aten.linear %x, %w, %none
    : !torch.vtensor<[?,?,8],f32>, !torch.vtensor<[8,8],f32>, !torch.none -> !torch.vtensor<[?,?,8],f32>
  %s0 = torch.symbolic_int "s0" {min_val = 1, max_val = 9} : !torch.int
  %s1 = torch.symbolic_int "s1" {min_val = 1, max_val = 9} : !torch.int
  torch.bind_symbolic_shape %x, [%s0, %s1], affine_map<()[s0, s1] -> (s0, s1, 8)> : !torch.vtensor<[?,?,8],f32>
  torch.bind_symbolic_shape %p, [%s0, %s1], affine_map<()[s0, s1] -> (s0, s1, 8)> : !torch.vtensor<[?,?,8],f32>
  %b = torch.aten.size.int %x, %int0 : !torch.vtensor<[?,?,8],f32>, !torch.int -> !torch.int
  %s = torch.aten.size.int %x, %int1 : !torch.vtensor<[?,?,8],f32>, !torch.int -> !torch.int
  %shape = torch.prim.ListConstruct %b, %s, %int-1, %int4
    : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %p, %shape : !torch.vtensor<[?,?,8],f32>, !torch.list<int> -> !torch.vtensor<[?,?,2,4],f32>
  %t = torch.aten.transpose.int %v, %int1, %int2
    : !torch.vtensor<[?,?,2,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[?,2,?,4],f32>
  return %t : !torch.vtensor<[?,2,?,4],f32>
}

// -----

// The step's own operations, and identities that disappear.
// CHECK-LABEL: func.func @attends
// CHECK-SAME: (%[[Q:.*]]: tensor<?x4x?x8xf32>, %[[K:.*]]: tensor<?x2x?x8xf32>, %[[N:.*]]: tensor<?x2x?x8xf32>, %[[O:.*]]: tensor<?xi64>)
// CHECK: %[[W:.*]] = "plan.write_slice"(%[[K]], %[[N]], %[[O]]) {axis = 2 : i64}
// CHECK: %[[NONE:.*]] = "onnx.no_value"()
// CHECK: %[[A:.*]] = "plan.attention"(%[[Q]], %[[W]], %[[W]], %[[O]], %[[NONE]])
// CHECK-SAME: layer = 3 : i64, scale = 2.500000e-01 : f32, softcap = 5.000000e+01 : f32, window = 7 : i64
// CHECK-NOT: onnx.cast
// CHECK-NOT: onnx.mul
// CHECK-NOT: onnx.slice
// CHECK: return %[[A]], %[[W]]
func.func @attends(%q: !torch.vtensor<[?,4,?,8],f32>, %k: !torch.vtensor<[?,2,?,8],f32>,
                   %new: !torch.vtensor<[?,2,?,8],f32>, %offset: !torch.vtensor<[?],si64>)
    -> (!torch.vtensor<[?,?,4,8],f32>, !torch.vtensor<[?,2,?,8],f32>) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %layer = torch.constant.int 3
  %window = torch.constant.int 7
  %float32 = torch.constant.int 6
  %end = torch.constant.int 9223372036854775807
  %scale = torch.constant.float 2.500000e-01
  %softcap = torch.constant.float 5.000000e+01
  %one = torch.constant.float 1.000000e+00
  %w = torch.operator "torch.planonce.kv_write"(%k, %new, %offset)
    : (!torch.vtensor<[?,2,?,8],f32>, !torch.vtensor<[?,2,?,8],f32>, !torch.vtensor<[?],si64>) -> !torch.vtensor<[?,2,?,8],f32>
  %c = torch.aten._to_copy %q, %float32, %none, %none, %none, %false, %none
    : !torch.vtensor<[?,4,?,8],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[?,4,?,8],f32>
  %m = torch.aten.mul.Scalar %c, %one : !torch.vtensor<[?,4,?,8],f32>, !torch.float -> !torch.vtensor<[?,4,?,8],f32>
  %s = torch.aten.slice.Tensor %m, %int0, %int0, %end, %int1
    : !torch.vtensor<[?,4,?,8],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[?,4,?,8],f32>
  %a = torch.operator "torch.planonce.attention"(%s, %w, %w, %offset, %none, %layer, %scale, %window, %softcap)
    : (!torch.vtensor<[?,4,?,8],f32>, !torch.vtensor<[?,2,?,8],f32>, !torch.vtensor<[?,2,?,8],f32>, !torch.vtensor<[?],si64>,
       !torch.none, !torch.int, !torch.float, !torch.int, !torch.float) -> !torch.vtensor<[?,?,4,8],f32>
  return %a, %w : !torch.vtensor<[?,?,4,8],f32>, !torch.vtensor<[?,2,?,8],f32>
}

// -----

// What is converted already, and a cut that is not the whole axis, stay.
// CHECK-LABEL: func.func @converted
// CHECK-NEXT: %[[M:.*]] = "onnx.mul"(%arg0, %arg0)
// CHECK-NEXT: return %[[M]]
func.func @converted(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = "onnx.mul"(%x, %x) : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}

// CHECK-LABEL: func.func @cut
// CHECK: "onnx.slice"(%arg0
func.func @cut(%x: !torch.vtensor<[?,4],f32>) -> !torch.vtensor<[?,3],f32> {
  %int1 = torch.constant.int 1
  %end = torch.constant.int 9223372036854775807
  %0 = torch.aten.slice.Tensor %x, %int1, %int1, %end, %int1
    : !torch.vtensor<[?,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[?,3],f32>
  return %0 : !torch.vtensor<[?,3],f32>
}

// -----

// Everything that has no lowering is in one error; what depends on it is one only if it lacks a row as well.
func.func @refuses(%x: !torch.vtensor<[4,4],f32>, %i: !torch.vtensor<[2],si64>) -> !torch.vtensor<[2],f32> {
  // expected-error@below {{torch.aten.sinh (x1)}}
  %0 = torch.aten.sinh %x : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %1 = torch.prim.ListConstruct %i, %i : (!torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>) -> !torch.list<vtensor>
  // expected-error@below {{2 index tensors at once}}
  %2 = torch.aten.index.Tensor %x, %1 : !torch.vtensor<[4,4],f32>, !torch.list<vtensor> -> !torch.vtensor<[2],f32>
  // expected-error@below {{torch.aten.cosh (x1)}}
  %4 = torch.aten.cosh %0 : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>
  %3 = torch.aten.index.Tensor %4, %1 : !torch.vtensor<[4,4],f32>, !torch.list<vtensor> -> !torch.vtensor<[2],f32>
  return %2 : !torch.vtensor<[2],f32>
}

// -----

// expected-error@below {{an argument that is no tensor}}
func.func @refuses_scalars(%x: !torch.vtensor<[4,4],f32>, %i: !torch.int) -> !torch.vtensor<[4,4],f32> {
  return %x : !torch.vtensor<[4,4],f32>
}
