import type { Lane } from "../core/queue.ts";
import type { Policy } from "../core/retry.ts";

/** Lanes and policies are few, and job rows hold their numbers: this is what the number of a lane is looked up by. */
export function laneText({ name, version, queue }: Omit<Lane, "id">): string {
  return `${name}\n${version}\n${queue}`;
}

/** And of a policy, as it is stored: the same for the same policy, whatever the order in which its parts were written. */
export function policyText(policy: Policy): string {
  return JSON.stringify(policy, Object.keys(policy).sort());
}
