// webpack --config webpack.config.mjs
export default {
  mode: "production",
  target: "node",
  entry: "./app.mjs",
  experiments: { outputModule: true },
  output: { filename: "app.mjs", module: true },
  externalsType: "module",
  externals: ["holdfast"],
};
