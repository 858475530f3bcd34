// RUN: planonce opt %s --pass-pipeline='verify-capture'

// Shapes where kernels read shapes, arithmetic on shapes, and a copy of the logits at the end: accepted.
// CHECK-LABEL: func.func @accepted
// CHECK: onnx.reshape
// CHECK: plan.copy
func.func @accepted(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %one = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %shape = "onnx.shape"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<2xi64>
  %same = "onnx.mul"(%shape, %one) {plan.device = "cuda:0"} : (tensor<2xi64>, tensor<1xi64>) -> tensor<2xi64>
  %0 = "onnx.reshape"(%x, %same) {plan.device = "cuda:0"} : (tensor<?x?xf16>, tensor<2xi64>) -> tensor<?x?xf16>
  %next = "onnx.add"(%at, %one) {plan.device = "cuda:0"} : (tensor<?xi64>, tensor<1xi64>) -> tensor<?xi64>
  %out = "plan.copy"(%0) {to = "host"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

func.func @copy_inside(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  // expected-error@below {{copies between devices inside the program}}
  %1 = "plan.copy"(%0) {to = "cuda:1"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  %out = "onnx.neg"(%1) {plan.device = "cuda:1"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

func.func @host_op(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  // expected-error@below {{'onnx.abs' op does not run on the captured device}}
  %out = "onnx.abs"(%0) {plan.device = "cpu:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

func.func @on_the_cpu(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  // expected-error@below {{does not run on the captured device}}
  %out = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

// The live length becomes the end of a slice, as in the portable arm.
func.func @length_to_the_host(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %zero = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %none = "onnx.no_value"() : () -> none
  // expected-error@below {{needs on the host what is computed on the device}}
  %out = "onnx.slice"(%x, %zero, %at, %none, %none) {plan.device = "cuda:0"}
    : (tensor<?x?xf16>, tensor<1xi64>, tensor<?xi64>, none, none) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

// A shape becomes data, as in the lengths of a program for the CPU.
func.func @shape_to_the_device(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %s = "onnx.shape"(%ids) {start = 1 : i64, end = 2 : i64, plan.device = "cuda:0"} : (tensor<?x?xi64>) -> tensor<1xi64>
  // expected-error@below {{takes a shape, which is on the host, as data}}
  %total = "onnx.add"(%at, %s) {plan.device = "cuda:0"} : (tensor<?xi64>, tensor<1xi64>) -> tensor<?xi64>
  return %x : tensor<?x?xf16>
}

// -----

// Before placement nothing says where it would run.
func.func @no_device(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  // expected-error@below {{does not run on the captured device}}
  %out = "onnx.neg"(%x) : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

// A graph is of one device, and a second CUDA device is another.
func.func @second_device(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  // expected-error@below {{expected: cuda:0}}
  %1 = "onnx.abs"(%x) {plan.device = "cuda:1"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %0 : tensor<?x?xf16>
}

// -----

// The bound of grouped-query attention is read on the host: the live length cannot be it.
func.func @live_length_as_bound(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %p: tensor<?x2x?x8xf16> {plan.name = "p", plan.role = "logit_positions", plan.dims = []},
    %r: tensor<?x?x16xf16> {plan.name = "r", plan.role = "logit_positions", plan.dims = []},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %none = "onnx.no_value"() : () -> none
  %last = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %longest = "onnx.reduce_max"(%last, %none) {keepdims = 0 : i64, plan.device = "cuda:0"} : (tensor<?xi32>, none) -> tensor<i32>
  // expected-error@below {{operand 6 follows from the step's inputs}}
  %a:4 = "onnx.ms_group_query_attention"(%r, %r, %r, %p, %p, %last, %longest, %none, %none, %none, %none, %none, %none, %none, %none, %none) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x?x16xf16>, tensor<?x?x16xf16>, tensor<?x?x16xf16>, tensor<?x2x?x8xf16>, tensor<?x2x?x8xf16>, tensor<?xi32>, tensor<i32>, none, none, none, none, none, none, none, none, none) -> (tensor<?x?x16xf16>, tensor<?x2x?x8xf16>, tensor<?x2x?x8xf16>, none)
  return %x : tensor<?x?xf16>
}

// -----

// Paged attention reads its bounds on the host, where shapes are, and everything else on the device.
// CHECK-LABEL: func.func @paged
// CHECK: onnx.ms_paged_attention
func.func @paged(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %p: tensor<?x16x2x8xf16> {plan.name = "p", plan.role = "logit_positions", plan.dims = []},
    %r: tensor<?x16xf16> {plan.name = "r", plan.role = "logit_positions", plan.dims = []},
    %t: tensor<?x?xi32> {plan.name = "t", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %none = "onnx.no_value"() : () -> none
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %shape = "onnx.shape"(%t) {plan.device = "cuda:0"} : (tensor<?x?xi32>) -> tensor<2xi64>
  %sizes = "onnx.cast"(%shape) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<2xi64>) -> tensor<?xi32>
  %a:3 = "onnx.ms_paged_attention"(%r, %r, %r, %p, %p, %past, %past, %t, %none, %none, %none, %none, %none, %none, %none, %none, %sizes) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<?xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  return %x : tensor<?x?xf16>
}

// -----

func.func @paged_bounds_on_the_device(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %p: tensor<?x16x2x8xf16> {plan.name = "p", plan.role = "logit_positions", plan.dims = []},
    %r: tensor<?x16xf16> {plan.name = "r", plan.role = "logit_positions", plan.dims = []},
    %t: tensor<?x?xi32> {plan.name = "t", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %none = "onnx.no_value"() : () -> none
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  // expected-error@below {{operand 16 follows from the step's inputs}}
  %a:3 = "onnx.ms_paged_attention"(%r, %r, %r, %p, %p, %past, %past, %t, %none, %none, %none, %none, %none, %none, %none, %none, %past) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<?xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  return %x : tensor<?x?xf16>
}

// -----

// Where rows begin is data: a shape may say how many there are, not where.
func.func @paged_rows_on_the_host(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %p: tensor<?x16x2x8xf16> {plan.name = "p", plan.role = "logit_positions", plan.dims = []},
    %r: tensor<?x16xf16> {plan.name = "r", plan.role = "logit_positions", plan.dims = []},
    %t: tensor<?x?xi32> {plan.name = "t", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %none = "onnx.no_value"() : () -> none
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %shape = "onnx.shape"(%t) {plan.device = "cuda:0"} : (tensor<?x?xi32>) -> tensor<2xi64>
  %sizes = "onnx.cast"(%shape) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<2xi64>) -> tensor<?xi32>
  // expected-error@below {{operand 5 is a shape}}
  %a:3 = "onnx.ms_paged_attention"(%r, %r, %r, %p, %p, %sizes, %past, %t, %none, %none, %none, %none, %none, %none, %none, %none, %sizes) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<?xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<?xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  return %x : tensor<?x?xf16>
}
