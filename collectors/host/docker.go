package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
)

const longestAnswer = 8 << 20 // bytes of a runtime's list of containers

// A docker speaks the Docker engine's HTTP API over its socket.
type docker struct {
	source string
	client http.Client
}

// Docker returns the names known to the engine behind a Unix socket:
// /run/docker.sock.
func Docker(socket string) Names { return newDocker("docker", socket) }

// Podman returns the names known to the service behind a Unix socket:
// /run/podman/podman.sock.
func Podman(socket string) Names { return newDocker("podman", socket) }

func newDocker(source, socket string) *docker {
	return &docker{source, http.Client{
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives:      true, // Podman's service ends without connections
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
			ResponseHeaderTimeout:  time.Second,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
	}}
}

func (d *docker) Source() string { return d.source }

func (d *docker) Containers(ctx context.Context) (map[string]ContainerName, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/containers/json", nil)
	if err != nil {
		return nil, err
	}
	response, err := d.client.Do(request)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, Explain(err, Reads|Writes)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("list containers: %s", field(response.Status))
	}
	var list []struct {
		ID     string `json:"Id"`
		Names  []string
		Image  string
		Labels map[string]string
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, longestAnswer)).Decode(&list); err != nil {
		return nil, fmt.Errorf("read the list of containers: %w", err)
	}
	names := make(map[string]ContainerName, len(list))
	for _, c := range list {
		n := ContainerName{Image: c.Image, Namespace: c.Labels["io.kubernetes.pod.namespace"],
			Pod: c.Labels["io.kubernetes.pod.name"], Container: c.Labels["io.kubernetes.container.name"]}
		for _, name := range c.Names {
			name = strings.TrimPrefix(name, "/")
			if n.Name == "" || strings.Contains(n.Name, "/") { // a name that a link gives, in any order
				n.Name = name
			}
		}
		names[c.ID] = n
	}
	return names, nil
}
