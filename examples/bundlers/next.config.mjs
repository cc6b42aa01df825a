// next build
export default {
  output: "standalone",
  serverExternalPackages: ["holdfast"],
  outputFileTracingIncludes: { "/*": ["./node_modules/holdfast/**/*"] },
};
