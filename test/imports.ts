import { registerHooks } from "node:module";

/*
 * For every process of a run (`--import`, from `setup.ts`): what the files of this repository import of each other is where
 * it says. To look for it (links, packages, formats), for three hundred modules, is a third of what a short command costs.
 */
const OURS = [new URL("../src/", import.meta.url).href, new URL("./", import.meta.url).href];

registerHooks({
  resolve(specifier, context, next) {
    const parent = context.parentURL;
    if (parent === undefined || !/^\.{1,2}\/.*\.ts$/.test(specifier) || !OURS.some((folder) => parent.startsWith(folder))) {
      return next(specifier, context);
    }
    return { url: new URL(specifier, parent).href, format: "module-typescript", shortCircuit: true };
  },
});
