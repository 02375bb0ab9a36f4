#!/bin/sh
# vm.sh WORK GUEST PROGRAM... boots a throw-away virtual machine that has two Soft-RoCE devices, rxe0 and rxe1, at 10.78.0.1 and
# 10.78.0.2 on the ends of a veth pair, with the programs in its PATH, runs the script GUEST in it and exits with its status. WORK
# keeps the kernel from run to run. What the guest writes to /out is in WORK/out afterwards. Nothing of this machine is seen by the
# guest, and no privilege is needed: the processor is emulated (TCG), so speeds in there mean nothing.
#
# It exits with 99 when the guest did not come to its end. VM_TIMEOUT is the seconds that it has for that.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
guest=$2
shift 2

# The kernel: Debian's own, unpacked and not installed. The cloud kernel has no rdma_rxe. A version that the archive does not have any more
# is what an old index names.
kernel() {
	package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
	version=${package#linux-image-}
	[ ! -f "$work/kernel/.done-$version" ] || return 0
	rm -rf "$work/kernel"
	mkdir -p "$work/kernel"
	(cd "$work/kernel" && apt-get download -qq "$package" && dpkg-deb -x ./*.deb . && rm ./*.deb) || return 1
	/sbin/depmod -b "$work/kernel" "$version" && touch "$work/kernel/.done-$version"
}
kernel || { apt-get update -q && kernel; }

# The root file system: an initramfs, not compressed, since unpacking is what an emulated processor is slow at.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/run" "$root/var/run" "$root/mods" "$root/out"
cp /bin/busybox "$root/bin/"
for a in awk base64 cat cp cut date dmesg echo env grep gzip head insmod kill ls mkdir mount mv poweroff rm sed seq sleep tail tar test timeout touch tr true uname wc; do
	ln -s busybox "$root/bin/$a"
done

# libraries FILE copies what the loader will look for.
libraries() {
	ldd "$1" 2>/dev/null | awk '/=> \// { print $3 } /^\t\// { print $1 }' | while read -r l; do
		mkdir -p "$root$(dirname "$l")"
		cp -nL "$l" "$root$l" || true
	done
}
cp /bin/dash "$root/bin/sh" # busybox' own sh prefers busybox' own ip
libraries /bin/dash
for p in "$(command -v ip)" "$(command -v rdma)" "$(command -v tc)" "$@"; do
	cp -L "$p" "$root/bin/"
	libraries "$p"
done
mkdir -p "$root/etc/libibverbs.d" # the provider is opened at run time, so ldd does not show it
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
for so in /usr/lib/*/libibverbs/librxe-rdmav*.so; do
	mkdir -p "$root$(dirname "$so")"
	cp -L "$so" "$root$so"
	libraries "$so"
done
: >"$root/mods/order"
for m in crc32_generic rdma_rxe ib_uverbs veth sch_netem; do # without crc32_generic a device cannot be made, and the error does not say so
	/sbin/modprobe -d "$work/kernel" -S "$version" --show-depends "$m" 2>/dev/null | awk '$1 == "insmod" { print $2 }' | while read -r f; do
		name=$(basename "$f" .xz)
		grep -qx "$name" "$root/mods/order" && continue
		case $f in *.xz) xz -dc "$f" >"$root/mods/$name" ;; *) cp "$f" "$root/mods/" ;; esac
		echo "$name" >>"$root/mods/order"
	done
done
cp "$here/init.sh" "$root/init"
cp "$guest" "$root/guest.sh"
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"

# The clock is the HPET: the processor's counter is measured when the kernel boots, and on a busy machine it is measured wrong, so that
# seconds pass in there forty times too fast.
timeout "${VM_TIMEOUT:-240}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${VM_MEMORY:-1536}" -nodefaults -no-reboot -display none \
	-serial stdio -kernel "$work/kernel/boot/vmlinuz-$version" -initrd "$work/initramfs" \
	-append "console=ttyS0 quiet panic=-1 loglevel=3 mitigations=off nokaslr tsc=unstable clocksource=hpet" </dev/null 2>&1 | tr -d '\r' | tee "$work/serial.log" |
	grep --line-buffered -v '^VM_OUT ' || true
rm -rf "$work/out"
mkdir -p "$work/out"
sed -n 's/^VM_OUT //p' "$work/serial.log" | base64 -d 2>/dev/null | tar -xz -C "$work/out" 2>/dev/null || true
rc=$(sed -n 's/^VM_RC=//p' "$work/serial.log" | tail -n 1)
exit "${rc:-99}"
