package dashboards

import "encoding/json"

// Files returns the text of all generated files by name.
func Files() (map[string]string, error) {
	files := map[string]string{}
	for _, d := range all() {
		text, err := json.MarshalIndent(d.model(), "", "  ")
		if err != nil {
			return nil, err
		}
		files[uid(d.name)+".json"] = string(text) + "\n"
	}
	return files, nil
}
