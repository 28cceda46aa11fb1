package host

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

const mostLinks = 16384 // maximum number of links read

// kubeletLinks is a directory of links to containers' logs.
type kubeletLinks string

// KubeletLogs returns the names that the kubelet gives to containers' logs in
// dir, /var/log/containers. One directory listing has them all, without an API.
// It has no images.
func KubeletLogs(dir string) Names { return kubeletLinks(dir) }

func (kubeletLinks) Source() string { return "kubelet" }

func (l kubeletLinks) Containers(context.Context) (map[string]ContainerName, error) {
	dir, err := os.Open(string(l))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	links, err := dir.Readdirnames(mostLinks)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	names := make(map[string]ContainerName, len(links))
	for _, link := range links {
		if id, n, ok := parseLink(link); ok {
			names[id] = n
		}
	}
	return names, nil
}

// longestLink is where the kubelet cuts a link's name, without .log. It cuts the
// id first.
const longestLink = 251 // bytes

// parseLink parses <pod>_<namespace>_<container>-<id>.log. The id may be cut.
func parseLink(link string) (id string, n ContainerName, ok bool) {
	name, ok := strings.CutSuffix(link, ".log")
	dash := strings.LastIndexByte(name, '-')
	parts := strings.Split(name[:max(dash, 0)], "_")
	id = name[dash+1:]
	cut := len(name) == longestLink && len(id) >= shortestID && isHex(id, len(id))
	if !ok || len(parts) != 3 || !isID(id) && !cut {
		return "", ContainerName{}, false
	}
	return id, ContainerName{Pod: parts[0], Namespace: parts[1], Container: parts[2]}, true
}
