import { createRequire } from "node:module";
import { ownThread } from "../../../own-file.ts";
import { fileOf } from "./tasks.ts";

// The child process of `runTaskApart`. It runs the code of threads, which the package has only once.
const { code } = ownThread(fileOf("task-runner", "a task"));
if (typeof code === "string") new Function("require", code)(createRequire(import.meta.url));
else void import(code.href);
