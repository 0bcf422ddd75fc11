// Runs ONNX files on given inputs: run.mjs REQUESTS.json prints the outputs, one object a request, as JSON.
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";

const ARRAYS = {
  bool: Uint8Array,
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
};

function tensor({ type, dims, data }) {
  const values = type === "int64" ? data.map(BigInt) : data;
  return new ort.Tensor(type, ARRAYS[type].from(values), dims);
}

ort.env.wasm.numThreads = 1;
const answers = [];
for (const { file, inputs } of JSON.parse(readFileSync(process.argv[2], "utf-8"))) {
  const session = await ort.InferenceSession.create(file);
  const feeds = Object.fromEntries(Object.entries(inputs).map(([name, given]) => [name, tensor(given)]));
  const outputs = Object.entries(await session.run(feeds)).map(([name, { type, dims, data }]) => [
    name,
    { type, dims, data: Array.from(data, Number) },
  ]);
  answers.push(Object.fromEntries(outputs));
}
console.log(JSON.stringify(answers));
