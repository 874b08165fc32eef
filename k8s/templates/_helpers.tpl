{{/*
The templates read the manifests that kustomize reads too, and change in them what the values say: every object stands in one
file of base/, components/ or overlays/, with its comments. A test holds the chart against each overlay.
*/}}

{{/* Prints an object, with the labels of all. One of a pool gets the pool's name behind its own, and is picked by its label. */}}
{{- define "streamfleet.print" -}}
{{- $labels := dict "app.kubernetes.io/name" "streamfleet" "app.kubernetes.io/part-of" "streamfleet" -}}
{{- $spec := .object.spec | default dict -}}
{{- $template := $spec.template | default dict -}}
{{- if ne (.pool | default "default") "default" -}}
{{- $_ := set $labels "streamfleet.io/pool" .pool -}}
{{- $_ := set .object.metadata "name" (printf "%s-%s" .object.metadata.name .pool) -}}
{{- $picks := list (dig "podSelector" "matchLabels" nil $spec) -}}
{{- $picks = append $picks (eq .object.kind "Service" | ternary $spec.selector (dig "selector" "matchLabels" nil $spec)) -}}
{{- range dig "spec" "topologySpreadConstraints" list $template -}}
{{- $picks = append $picks (dig "labelSelector" "matchLabels" nil .) -}}
{{- end -}}
{{- range compact $picks -}}
{{- $_ := set . "streamfleet.io/pool" $.pool -}}
{{- end -}}
{{- end -}}
{{- $labelled := list .object.metadata $template.metadata -}}
{{- range $spec.volumeClaimTemplates }}{{ $labelled = append $labelled .metadata }}{{ end -}}
{{- range compact $labelled -}}
{{- $_ := set . "labels" (merge (deepCopy $labels) (.labels | default dict)) -}}
{{- end -}}
---
{{ toYaml .object }}
{{ end -}}

{{/* The name of an image. One without a tag is built from this repository: it gets the registry and the release. */}}
{{- define "streamfleet.image" -}}
{{- $images := .root.Values.images -}}
{{- if regexMatch "@|:[^/]*$" .image -}}
{{ .image }}
{{- else -}}
{{ with $images.registry }}{{ . }}/{{ end }}{{ .image }}:{{ $images.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/*
Changes a pod template by values: image, labels, resources, nodes, the user; where Redis is, and what rolls it.

root, template, image; values: of this part; urls: the Secret with Redis's URL; config: settings whose change rolls the pods.
*/}}
{{- define "streamfleet.pod" -}}
{{- $images := .root.Values.images -}}
{{- $pod := .template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "image" (include "streamfleet.image" .) -}}
{{- with $images.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $images.pullSecrets -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names (dict "name" .) }}{{ end -}}
{{- $_ := set $pod "imagePullSecrets" $names -}}
{{- end -}}
{{- $_ := set $container "resources" (mergeOverwrite $container.resources (.values.resources | default dict)) -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" -}}
{{- with get $.values $field }}{{ $_ := set $pod $field . }}{{ end -}}
{{- end -}}
{{- with .values.podLabels }}{{ $_ := set $.template.metadata "labels" (merge $.template.metadata.labels .) }}{{ end -}}
{{- $annotations := .values.podAnnotations | default dict -}}
{{- with .config }}{{ $annotations = merge (dict "checksum/config" (sha256sum .)) $annotations }}{{ end -}}
{{- with $annotations }}{{ $_ := set $.template.metadata "annotations" . }}{{ end -}}
{{- if not .root.Values.fixedUser -}}
{{- range list "runAsUser" "runAsGroup" "fsGroup" "fsGroupChangePolicy" }}{{ $_ := unset $pod.securityContext . }}{{ end -}}
{{- end -}}
{{- if .urls -}}
{{- range $pod.volumes -}}
{{- if eq .name "redis" }}{{ $_ := set .secret "secretName" $.urls }}{{ end -}}
{{- end -}}
{{- include "streamfleet.login" (dict "redis" .root.Values.redis "pod" $pod) -}}
{{- with .root.Values.redis.ca -}}
{{- $volume := dict "name" "redis-ca" "secret" (dict "secretName" .) -}}
{{- $mount := dict "name" "redis-ca" "mountPath" "/etc/redis-ca" "readOnly" true -}}
{{- include "streamfleet.mount" (dict "pod" $pod "volumes" (list $volume) "mounts" (list $mount)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Tells a pod the URL of an outside Redis, and to take user and password from the files of its Secret. */}}
{{- define "streamfleet.login" -}}
{{- $outside := .redis.outside -}}
{{- if and (eq .redis.kind "outside") $outside.url -}}
{{- if and .redis.ca (hasPrefix "redis:" $outside.url) -}}
{{- fail "redis.outside.url: redis.ca says that Redis has TLS: write rediss://" -}}
{{- end -}}
{{- $items := list (dict "key" $outside.passwordKey "path" "password") -}}
{{- with $outside.userKey }}{{ $items = prepend $items (dict "key" . "path" "username") }}{{ end -}}
{{- range .pod.volumes }}{{ if eq .name "redis" }}{{ $_ := set .secret "items" $items }}{{ end }}{{ end -}}
{{- $url := print $outside.url (empty .redis.ca | ternary "" "/0?ssl_ca_certs=/etc/redis-ca/ca.pem") -}}
{{- $env := list (dict "name" "REDIS_URL" "value" $url) -}}
{{- $env = append $env (dict "name" "STREAMFLEET_REDIS_CREDENTIALS" "value" "streamfleet.common.secret_files:mounted_login") -}}
{{- $container := first .pod.containers -}}
{{- range $container.env }}{{ if ne .name "REDIS_URL_FILE" }}{{ $env = append $env . }}{{ end }}{{ end -}}
{{- $_ := set $container "env" $env -}}
{{- end -}}
{{- end -}}

{{/* Adds volumes to a pod, and mounts to its container. */}}
{{- define "streamfleet.mount" -}}
{{- $container := first .pod.containers -}}
{{- $_ := set .pod "volumes" (concat (.pod.volumes | default list) (.volumes | default list)) -}}
{{- $_ := set $container "volumeMounts" (concat ($container.volumeMounts | default list) (.mounts | default list)) -}}
{{- end -}}

{{/* The lines NAME=value of a file, as a map. */}}
{{- define "streamfleet.env" -}}
{{- $found := dict -}}
{{- range .root.Files.Lines .file -}}
{{- if and . (not (hasPrefix "#" .)) -}}
{{- $parts := splitn "=" 2 . -}}
{{- $_ := set $found $parts._0 $parts._1 -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* A ConfigMap out of files, each under its name. */}}
{{- define "streamfleet.files" -}}
{{- $data := dict -}}
{{- range .files }}{{ $_ := set $data (base .) (required . ($.root.Files.Get .)) }}{{ end -}}
{{- toYaml $data -}}
{{- end -}}

{{- define "streamfleet.configMap" -}}
{{- $object := dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" .name) "data" (print .data "\n" | fromYaml) -}}
{{- include "streamfleet.print" (dict "object" $object "pool" .pool) -}}
{{- end -}}

{{/* Every pool with all its values: its own over those of `worker`. */}}
{{- define "streamfleet.pools" -}}
{{- $pools := .Values.pools | default (dict "default" dict) -}}
{{- if and (hasKey $pools "default") (gt (len $pools) 1) -}}
{{- fail "pools: `default` stands alone, because its objects have no pool's name: give each of several pools its own name" -}}
{{- end -}}
{{- $found := dict -}}
{{- range $name, $own := $pools -}}
{{- $pool := mergeOverwrite (deepCopy $.Values.worker) ($own | default dict) -}}
{{- include "streamfleet.refuse" (dict "pool" $pool "own" ($own | default dict) "values" $.Values "at" ($.Values.pools | empty | ternary "worker" (print "pools." $name))) -}}
{{- $_ := set $pool "queue" ($pool.queue | default $name) -}}
{{- $_ := set $pool "suffix" (eq $name "default" | ternary "" (printf "-%s" $name)) -}}
{{- $_ := set $found $name $pool -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Fails on values of a pool that fit to no others. */}}
{{- define "streamfleet.refuse" -}}
{{- $scaling := .pool.autoscaling -}}
{{- if $scaling.by -}}
{{- if gt (int $scaling.min) (int $scaling.max) -}}
{{- fail (printf "%s.autoscaling.min: %d is more than max, which is %d" .at (int $scaling.min) (int $scaling.max)) -}}
{{- end -}}
{{- if or (hasKey .own "replicas") (and (empty .values.pools) (ne (int .pool.replicas) 1)) -}}
{{- fail (printf "%s.replicas: autoscaling has the number: write autoscaling.min and max, or autoscaling: {by: \"\"}" .at) -}}
{{- end -}}
{{- if and (eq $scaling.by "redis-streams") (eq .values.redis.kind "outside") .values.redis.ca (not .values.keda.tls) (empty .values.redis.outside.url) -}}
{{- fail "keda.tls: redis.ca says that Redis has TLS: write true" -}}
{{- end -}}
{{- end -}}
{{- $gpus := int .pool.gpu.count -}}
{{- with include "streamfleet.parallel" .pool.engineArgs -}}
{{- if and $gpus (ne (int .) $gpus) (not $.pool.server.url) -}}
{{- fail (printf "%s.engineArgs: its parallel sizes need %s GPUs, and gpu.count is %d" $.at . $gpus) -}}
{{- end -}}
{{- end -}}
{{- include "streamfleet.unset" (dict "at" .at "settings" .pool.settings "values" (dict "MODEL" "model" "QUEUE" "queue" "ENGINE_ARGS" "engineArgs" "DRAIN_MS" "drainSeconds")) -}}
{{- end -}}

{{/* How many GPUs the arguments of vLLM ask for; empty if they leave it open. */}}
{{- define "streamfleet.parallel" -}}
{{- $found := regexFindAll "(--(tensor|pipeline|data|prefill-context)-parallel-size|-(tp|pp|dp|pcp))[ =]+[0-9]+" . -1 -}}
{{- $gpus := 1 -}}
{{- range $found }}{{ $gpus = mul $gpus (regexFind "[0-9]+$" . | int) }}{{ end -}}
{{- if $found }}{{ $gpus }}{{ end -}}
{{- end -}}

{{/* Fails on settings that have a value of the chart. */}}
{{- define "streamfleet.unset" -}}
{{- range $name, $value := .values -}}
{{- if hasKey $.settings (print "STREAMFLEET_" $name) -}}
{{- fail (printf "%s.settings.STREAMFLEET_%s: write %s.%s in its place" $.at $name $.at $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The environment of a pool's workers, its exporter and its server. */}}
{{- define "streamfleet.settings" -}}
{{- $pool := .pool -}}
{{- $settings := include "streamfleet.env" (dict "root" .root "file" "base/worker/worker.env") | fromYaml -}}
{{- $_ := set $settings "STREAMFLEET_QUEUE" $pool.queue -}}
{{- $_ := set $settings "STREAMFLEET_MODEL" $pool.model -}}
{{- $_ := set $settings "STREAMFLEET_DRAIN_MS" (mul $pool.drainSeconds 1000 | toString) -}}
{{- $arguments := $pool.engineArgs -}}
{{- if and (gt (int $pool.gpu.count) 1) (not (include "streamfleet.parallel" $arguments)) -}}
{{- $arguments = printf "%s --tensor-parallel-size %d" $arguments (int $pool.gpu.count) | trim -}}
{{- end -}}
{{- with $arguments }}{{ $_ := set $settings "STREAMFLEET_ENGINE_ARGS" . }}{{ end -}}
{{- if or $pool.server.start $pool.server.url -}}
{{- $_ := set $settings "STREAMFLEET_ENGINE" "openai" -}}
{{- $_ := set $settings "STREAMFLEET_REMOTE_SLOTS" ($pool.server.slots | toString) -}}
{{- end -}}
{{- if eq .root.Values.redis.kind "sentinel" }}{{ $_ := set $settings "STREAMFLEET_ENQUEUE_REPLICAS" "1" }}{{ end -}}
{{- toYaml (mergeOverwrite $settings $pool.settings) -}}
{{- end -}}

{{/* Lets a part out to an outside Redis. */}}
{{- define "streamfleet.toRedis" -}}
{{- $ports := list -}}
{{- range .Values.redis.outside.ports }}{{ $ports = append $ports (dict "protocol" "TCP" "port" .) }}{{ end -}}
{{- $networks := list -}}
{{- range .Values.redis.outside.networks }}{{ $networks = append $networks (dict "ipBlock" (dict "cidr" .)) }}{{ end -}}
{{- toYaml (dict "ports" $ports "to" $networks) -}}
{{- end -}}

{{/* A volume claim by values: size, storageClass, accessModes. */}}
{{- define "streamfleet.claim" -}}
{{- $spec := .claim.spec -}}
{{- with .values.size }}{{ $_ := set $spec.resources.requests "storage" . }}{{ end -}}
{{- with .values.storageClass }}{{ $_ := set $spec "storageClassName" . }}{{ end -}}
{{- with .values.accessModes }}{{ $_ := set $spec "accessModes" . }}{{ end -}}
{{- end -}}
