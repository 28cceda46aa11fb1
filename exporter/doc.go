// Package exporter serves the readings over HTTP. Prometheus reads /metrics, and tools for
// dcgm-exporter read /metrics/dcgm. Programs read /api/v1/state, /api/v1/live, /api/v1/history
// and /api/v1/events. People use the page at / and gpusteward status. Probes read /-/healthy
// and /-/ready. The control socket takes orders.
//
//	Samples -> gatherer -> metric families -> cached response -> scraper
//	Samples -> State -> /api/v1/state, the stream of the page, gpusteward status
//
// The gatherer converts samples in place: it points to labels and does not copy them. The
// sample of a histogram has exponential buckets, which become native ones for protobuf and
// classic ones for every format.
//
// Rendering costs more than reading a GPU, so scrapers share the result (scrape.go). The first
// scrape renders a response. While clients read it, it is rendered again a tenth of an interval
// after each reading, and a scrape copies bytes. Responses differ by format and compression. At
// most 16 are kept, and one that nobody reads is dropped. A request with name[] gets a part of
// the shared response. A timer gathers the metrics of the Go runtime and of the process.
//
// state.go and the files beside it (gpu.go, workload.go, job.go, steps.go, tenant.go, fault.go)
// make a State from samples, for people and programs. history.go keeps the last 15 minutes and
// the last day. The page's scripts and styles are in page/, the watched status in view.go and
// watch.go. dcgm.go is the table of dcgm-exporter's names. survey.go asks a Prometheus for a Fleet
// of many hosts.
//
// Invariants:
//
//   - Each answer comes from memory: no request waits for the driver, and none at the port
//     changes anything. Orders go to the control socket, which asks the kernel who gives them.
//   - The agent's cost does not grow with its scrapers.
//   - A client that does not read, write or close holds up nobody (connections.go, stream.go).
//   - A value that is unknown is absent, and never 0.
//
// Begin with New in exporter.go, scrape.go and state.go.
package exporter
