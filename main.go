// Gpusteward reads the NVIDIA GPUs of a host, judges them, keeps tenants to
// their share, and exposes it all to Prometheus.
package main

import (
	"os"

	"gpusteward/internal/agent"
)

func main() { os.Exit(agent.Main("/")) }
