import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "./bundle.ts";
import { apiReference } from "./api-reference.ts";
import { cliReference } from "./cli-reference.ts";
import { decisionsIndex } from "./decisions-index.ts";
import { errors } from "./errors.ts";
import { metricsReference } from "./metrics-reference.ts";
import { reference } from "./reference.ts";
import { uncheckedColumns } from "./unchecked-columns.ts";

/** The pages that are made from src/. `npm run docs` writes them; a test compares them. */
export const GENERATED: Readonly<Record<string, () => string | Promise<string>>> = {
  "docs/reference.md": reference,
  "docs/errors.md": errors,
  "docs/cli.md": cliReference,
  "docs/http-api.md": apiReference,
  "docs/metrics-reference.md": metricsReference,
  "docs/unchecked-columns.md": uncheckedColumns,
  "docs/decisions/README.md": decisionsIndex,
};

if (import.meta.main) for (const [path, make] of Object.entries(GENERATED)) writeFileSync(join(ROOT, path), await make());
