package config

import (
	"fmt"
	"net/http"
	"path/filepath"

	prometheus "github.com/prometheus/common/config"

	"gpusteward/collectors/host"
)

// HTTPClient returns a client as a file in the format of Prometheus's own
// http_config describes it: passwords, tokens, certificates, a proxy. Paths in
// it are relative to its directory. Errors name the file, the line and the key.
func HTTPClient(path string) (*http.Client, error) {
	text, err := host.ReadFile(path, Longest)
	if err != nil {
		return nil, host.Explain(err, host.Reads)
	}
	c := prometheus.DefaultHTTPClientConfig
	if err := Decode(path, text, &c); err != nil {
		return nil, err
	}
	c.SetDirectory(filepath.Dir(path))
	client, err := prometheus.NewClientFromConfig(c, "gpusteward")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return client, nil
}
