import type { Route } from "../route.ts";
import { BUILD_ROUTES } from "./builds.ts";
import { CLAIM_ROUTES } from "./claims.ts";
import { JOB_ROUTES } from "./jobs.ts";
import { OPERATE_ROUTES } from "./operate.ts";
import { QUEUE_ROUTES } from "./queues.ts";

export const ROUTES: readonly Route[] = [...JOB_ROUTES, ...CLAIM_ROUTES, ...QUEUE_ROUTES, ...BUILD_ROUTES, ...OPERATE_ROUTES];
