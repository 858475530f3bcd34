// RUN: planonce opt %s --pass-pipeline='fuse-rope' --remarks

// Halves: one column of the tables for each pair.
// CHECK: remark: 1 rotary embeddings became one operation each: 4 of 4 elements in halves
// CHECK-LABEL: func.func @halves
// CHECK-DAG: %[[C:.*]] = "onnx.constant"() {value = dense<{{\[\[}}1.000000e+00, 1.000000e+00], [5.000000e-01, 2.500000e-01]]>
// CHECK-DAG: %[[S:.*]] = "onnx.constant"() {value = dense<{{\[\[}}0.000000e+00, 0.000000e+00], [7.500000e-01, 1.250000e-01]]>
// CHECK: %[[R:.*]] = "plan.rope"(%arg0, %[[C]], %[[S]], %arg1) {interleaved = 0 : i64, rotary_dim = 4 : i64}
// CHECK-NOT: onnx.gather
// CHECK: return %[[R]]
func.func @halves(%x: tensor<?x2x?x4xf32>, %p: tensor<?x?xi64>) -> tensor<?x2x?x4xf32> {
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %ct = "onnx.constant"() {value = dense<[[1.0, 1.0, 1.0, 1.0], [0.5, 0.25, 0.5, 0.25]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.125, 0.75, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %cg = "onnx.gather"(%ct, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %low = "onnx.slice"(%x, %c0, %c2, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %high = "onnx.slice"(%x, %c2, %end, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%high) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %swapped = "onnx.concat"(%neg, %low) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  return %y : tensor<?x2x?x4xf32>
}

// -----

// CHECK: remark: 1 rotary embeddings became one operation each: 4 of 4 elements interleaved
// CHECK-LABEL: func.func @interleaved
// CHECK-DAG: %[[C:.*]] = "onnx.constant"() {value = dense<{{\[\[}}1.000000e+00, 1.000000e+00], [5.000000e-01, 2.500000e-01]]>
// CHECK: %[[R:.*]] = "plan.rope"(%arg0, %[[C]], %{{.*}}, %arg1) {interleaved = 1 : i64, rotary_dim = 4 : i64}
// CHECK-NEXT: return %[[R]]
func.func @interleaved(%x: tensor<?x2x?x4xf32>, %p: tensor<?x?xi64>) -> tensor<?x2x?x4xf32> {
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %ct = "onnx.constant"() {value = dense<[[1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.25, 0.25]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.75, 0.125, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %cg = "onnx.gather"(%ct, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %odd = "onnx.slice"(%x, %c1, %end, %c3, %c2) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?x2x?x2xf32>
  %even = "onnx.slice"(%x, %c0, %end, %c3, %c2) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%odd) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %c4 = "onnx.constant"() {value = dense<4> : tensor<1xi64>} : () -> tensor<1xi64>
  %n5 = "onnx.unsqueeze"(%neg, %c4) : (tensor<?x2x?x2xf32>, tensor<1xi64>) -> tensor<?x2x?x2x1xf32>
  %e5 = "onnx.unsqueeze"(%even, %c4) : (tensor<?x2x?x2xf32>, tensor<1xi64>) -> tensor<?x2x?x2x1xf32>
  %pairs = "onnx.concat"(%n5, %e5) {axis = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2x1xf32>, tensor<?x2x?x2x1xf32>) -> tensor<?x2x?x2x2xf32>
  %flat = "onnx.constant"() {value = dense<[0, 0, 0, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %swapped = "onnx.reshape"(%pairs, %flat) : (tensor<?x2x?x2x2xf32>, tensor<4xi64>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  return %y : tensor<?x2x?x4xf32>
}

// -----

// Partial: the first 4 of 6 elements turn, the other 2 are joined on again.
// CHECK: remark: 1 rotary embeddings became one operation each: 4 of 6 elements in halves
// CHECK-LABEL: func.func @partial
// CHECK: %[[R:.*]] = "plan.rope"(%arg0, %{{.*}}, %{{.*}}, %arg1) {interleaved = 0 : i64, rotary_dim = 4 : i64} : (tensor<?x2x?x6xf32>
// CHECK-NEXT: return %[[R]]
func.func @partial(%head: tensor<?x2x?x6xf32>, %p: tensor<?x?xi64>) -> tensor<?x2x?x6xf32> {
  %n = "onnx.no_value"() : () -> none
  %k0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %k3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %k4 = "onnx.constant"() {value = dense<4> : tensor<1xi64>} : () -> tensor<1xi64>
  %k6 = "onnx.constant"() {value = dense<6> : tensor<1xi64>} : () -> tensor<1xi64>
  %x = "onnx.slice"(%head, %k0, %k4, %k3, %n) : (tensor<?x2x?x6xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x4xf32>
  %rest = "onnx.slice"(%head, %k4, %k6, %k3, %n) : (tensor<?x2x?x6xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %ct = "onnx.constant"() {value = dense<[[1.0, 1.0, 1.0, 1.0], [0.5, 0.25, 0.5, 0.25]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.125, 0.75, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %cg = "onnx.gather"(%ct, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %low = "onnx.slice"(%x, %c0, %c2, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %high = "onnx.slice"(%x, %c2, %end, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%high) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %swapped = "onnx.concat"(%neg, %low) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  %whole = "onnx.concat"(%y, %rest) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x4xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x6xf32>
  return %whole : tensor<?x2x?x6xf32>
}

// -----

// Double use: the swapped halves are read elsewhere too.
// CHECK: remark: a rotary embedding stays as it is: a value inside it is read elsewhere too
// CHECK-LABEL: func.func @read_twice
// CHECK-NOT: plan.rope
func.func @read_twice(%x: tensor<?x2x?x4xf32>, %p: tensor<?x?xi64>) -> (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) {
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %ct = "onnx.constant"() {value = dense<[[1.0, 1.0, 1.0, 1.0], [0.5, 0.25, 0.5, 0.25]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.125, 0.75, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %cg = "onnx.gather"(%ct, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %low = "onnx.slice"(%x, %c0, %c2, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %high = "onnx.slice"(%x, %c2, %end, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%high) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %swapped = "onnx.concat"(%neg, %low) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  return %y, %swapped : tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>
}

// -----

// Near miss: the two elements of a pair turn by different angles.
// CHECK: remark: a rotary embedding stays as it is: the two elements of a pair have different angles
// CHECK-LABEL: func.func @unequal_pair
// CHECK-NOT: plan.rope
func.func @unequal_pair(%x: tensor<?x2x?x4xf32>, %p: tensor<?x?xi64>) -> tensor<?x2x?x4xf32> {
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %ct = "onnx.constant"() {value = dense<[[1.0, 1.0, 1.0, 1.0], [0.5, 0.25, 0.5, 0.3]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.125, 0.75, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %cg = "onnx.gather"(%ct, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %low = "onnx.slice"(%x, %c0, %c2, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %high = "onnx.slice"(%x, %c2, %end, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%high) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %swapped = "onnx.concat"(%neg, %low) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  return %y : tensor<?x2x?x4xf32>
}

// -----

// Near miss: it turns the other way, which is another function.
// CHECK-NOT: remark
// CHECK-LABEL: func.func @backwards
// CHECK-NOT: plan.rope
func.func @backwards(%x: tensor<?x2x?x4xf32>, %p: tensor<?x?xi64>) -> tensor<?x2x?x4xf32> {
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %ct = "onnx.constant"() {value = dense<[[1.0, 1.0, 1.0, 1.0], [0.5, 0.25, 0.5, 0.25]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.125, 0.75, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %cg = "onnx.gather"(%ct, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %low = "onnx.slice"(%x, %c0, %c2, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %high = "onnx.slice"(%x, %c2, %end, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%low) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %swapped = "onnx.concat"(%high, %neg) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  return %y : tensor<?x2x?x4xf32>
}

// -----

// Near miss: cosines that no table holds.
// CHECK: remark: a rotary embedding stays as it is: its cosines and sines are not looked up by position; run tabulate-positions before
// CHECK-LABEL: func.func @computed
// CHECK-NOT: plan.rope
func.func @computed(%x: tensor<?x2x?x4xf32>, %p: tensor<?x?xi64>, %cg: tensor<?x?x4xf32>) -> tensor<?x2x?x4xf32> {
  %none = "onnx.no_value"() : () -> none
  %c0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %c1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %c2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %c3 = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = "onnx.constant"() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %st = "onnx.constant"() {value = dense<[[0.0, 0.0, 0.0, 0.0], [0.75, 0.125, 0.75, 0.125]]> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %sg = "onnx.gather"(%st, %p) {axis = 0 : i64} : (tensor<2x4xf32>, tensor<?x?xi64>) -> tensor<?x?x4xf32>
  %cos = "onnx.unsqueeze"(%cg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %sin = "onnx.unsqueeze"(%sg, %c1) : (tensor<?x?x4xf32>, tensor<1xi64>) -> tensor<?x1x?x4xf32>
  %plain = "onnx.mul"(%x, %cos) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %low = "onnx.slice"(%x, %c0, %c2, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %high = "onnx.slice"(%x, %c2, %end, %c3, %none) : (tensor<?x2x?x4xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, none) -> tensor<?x2x?x2xf32>
  %neg = "onnx.neg"(%high) : (tensor<?x2x?x2xf32>) -> tensor<?x2x?x2xf32>
  %swapped = "onnx.concat"(%neg, %low) {axis = 3 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x2x?x2xf32>, tensor<?x2x?x2xf32>) -> tensor<?x2x?x4xf32>
  %turned = "onnx.mul"(%swapped, %sin) : (tensor<?x2x?x4xf32>, tensor<?x1x?x4xf32>) -> tensor<?x2x?x4xf32>
  %y = "onnx.add"(%plain, %turned) : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>) -> tensor<?x2x?x4xf32>
  return %y : tensor<?x2x?x4xf32>
}
