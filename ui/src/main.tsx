import { render } from "preact";
import "./app.css";
import { follow } from "./live.ts";
import { EnqueuePage } from "./pages/enqueue.tsx";
import { JobPage } from "./pages/job.tsx";
import { JobsPage } from "./pages/jobs.tsx";
import { OverviewPage } from "./pages/overview.tsx";
import { QueuesPage } from "./pages/queues.tsx";
import { SchedulesPage } from "./pages/schedules.tsx";
import { address } from "./router.ts";
import { type PageEntry, Shell } from "./shell.tsx";

const PAGES: PageEntry[] = [
  { page: "overview", title: "Overview", icon: "overview", key: "o", view: OverviewPage },
  { page: "jobs", title: "Jobs", icon: "jobs", key: "j", view: () => (address.value.id === null ? <JobsPage /> : <JobPage />) },
  { page: "queues", title: "Queues", icon: "queues", key: "q", view: QueuesPage },
  { page: "schedules", title: "Schedules", icon: "schedules", key: "s", view: SchedulesPage },
  { page: "enqueue", title: "Enqueue", icon: null, view: EnqueuePage },
];

follow();
render(<Shell pages={PAGES} />, document.getElementById("app") as HTMLElement);
