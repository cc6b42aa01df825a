import { createRequire } from "node:module";
import { compileFunction } from "node:vm";
import { ownThread } from "../../../own-file.ts";
import { fileOf } from "./tasks.ts";

// The child process of `runTaskApart`. It runs the code of threads, which the package has only once. Unlike `new Function`, this
// also works with `--disallow-code-generation-from-strings`, which a child process takes over from NODE_OPTIONS.
const { code } = ownThread(fileOf("task-runner", "a task"));
if (typeof code === "string") compileFunction(code, ["require"])(createRequire(import.meta.url));
else void import(code.href);
