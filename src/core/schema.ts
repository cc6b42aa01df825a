import { HoldfastError } from "./errors.ts";

/** Any schema of standardschema.dev: zod, valibot, arktype and others. */
export interface StandardSchema<In = unknown, Out = In> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => unknown;
    readonly types?: { readonly input: In; readonly output: Out } | undefined;
  };
}

interface Issue {
  message: string;
  path?: readonly (PropertyKey | { key: PropertyKey })[] | undefined;
}
type Result = { value: unknown; issues?: undefined } | { issues: readonly Issue[] };

/** What the schema makes of the value; a promise only where the schema itself is asynchronous. */
export function parse(schema: StandardSchema, value: unknown, what: string): unknown {
  const result = schema["~standard"].validate(value);
  if (result instanceof Promise) return result.then((late) => accepted(late as Result, what));
  return accepted(result as Result, what);
}

function accepted(result: Result, what: string): unknown {
  if (result.issues === undefined) return result.value;
  throw new HoldfastError(
    "INPUT_INVALID",
    `${what} does not fit its schema: ${result.issues.slice(0, 5).map(sayIssue).join("; ")}`,
    "Correct the value, or the schema of the job's definition.",
  );
}

function sayIssue(issue: Issue): string {
  const path = (issue.path ?? []).map((part) => String(typeof part === "object" ? part.key : part)).join(".");
  return path === "" ? issue.message : `${path}: ${issue.message}`;
}
