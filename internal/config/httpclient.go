package config

import (
	"fmt"
	"net/http"
	"path/filepath"

	prometheus "github.com/prometheus/common/config"

	"gpusteward/collectors/host"
)

// HTTPClient returns a client as httpConfig describes it.
func HTTPClient(path string) (*http.Client, error) {
	c, err := httpConfig(path)
	if err != nil {
		return nil, err
	}
	client, err := prometheus.NewClientFromConfig(c, "gpusteward")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return client, nil
}

// httpConfig reads a file in the format of Prometheus's own http_config:
// passwords, tokens, certificates, a proxy. Paths in it are relative to its
// directory. Errors name the file, the line and the key.
func httpConfig(path string) (prometheus.HTTPClientConfig, error) {
	c := prometheus.DefaultHTTPClientConfig
	text, err := host.ReadFile(path, Longest)
	if err != nil {
		return c, host.Explain(err, host.Reads)
	}
	if err := Decode(path, text, &c); err != nil {
		return c, err
	}
	c.SetDirectory(filepath.Dir(path))
	return c, nil
}
