import type { Command } from "commander";
import { listAudit } from "./list.ts";
import { verifyCommand } from "./verify.ts";

export function auditCommand(parent: Command): void {
  verifyCommand(listAudit(parent.command("audit")));
}
